# SPDX-License-Identifier: Apache-2.0
"""The model states and the traffic of a bare count of parameters, as the ZeRO paper counts them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from harness.errors import ExitCode, UserError
from harness.facts.devices import find_device
from harness.plan.search.plan_request import min_gpus_for_states, validate_count, validate_gpu
from harness.plan.weights.optimizer_states import BytesPerParameter

_ADAM = BytesPerParameter(2, 2, 4, 8)
_MAX_GPUS = 1_000_000
_GRADIENT_UNITS = {0: 2, 1: 2, 2: 2, 3: 1}
"""A ring sends a tensor once for a reduce-scatter and twice for an all-reduce, which DeepSpeed's stages 1 and 2 do too
(`use_multi_rank_bucket_allreduce`)."""
_GATHERS = {0: 0, 1: 1, 2: 1, 3: 2}
"""Of the parameters: once after the step; at stage 3 in the forward and in the backward pass."""


@dataclass(frozen=True, slots=True)
class StageShare:
    """Bytes a rank of one ZeRO stage by kind of state, and those that it sends a step of one micro-batch; `seconds` of
    that at the rate of the network, None without one. `of_ddp`: `sent` by the one all-reduce of DDP.
    """

    parameters: float
    gradients: float
    optimizer: float
    sent: float
    of_ddp: float
    seconds: float | None

    @property
    def states(self) -> float:
        """All model states."""
        return self.parameters + self.gradients + self.optimizer


@dataclass(frozen=True, slots=True)
class ModelStates:
    """`by_stage`: of each ZeRO stage; `gradient_bytes`: of a gradient between ranks; `network`: bytes a second of the
    ring's slowest edge; `raw_floor_gpus` would hold the states alone, None where the GPU is not known.
    """

    parameters: float
    gpus: int
    stage: int | None
    gpu: str | None
    recipe: BytesPerParameter
    by_stage: Mapping[int, StageShare]
    raw_floor_gpus: int | None
    gradient_bytes: int = 2
    network: float | None = None


def count_model_states(
    parameters: float,
    gpus: int,
    stage: int | None,
    gpu: str | None,
    gradient_bytes: int = 2,
    network: float | None = None,
) -> ModelStates:
    """16-bit weights and Adam, nothing else. Raises UserError for a count or a GPU that does not exist."""
    findings = [*validate_count("--gpus", gpus, _MAX_GPUS), *(validate_gpu(gpu) if gpu else [])]
    if findings:
        raise UserError(findings, ExitCode.USAGE)
    device = find_device(gpu or "")
    floor = min_gpus_for_states(_ADAM.per_rank(parameters, 1, 0), device) if device and not device.is_cpu else None
    by_stage = {each: _share_of_stage(parameters, gpus, each, gradient_bytes, network) for each in range(4)}
    return ModelStates(parameters, gpus, stage, gpu, _ADAM, by_stage, floor, gradient_bytes, network)


def _share_of_stage(parameters: float, gpus: int, stage: int, gradient_bytes: int, network: float | None) -> StageShare:
    """The state that a stage divides by the ranks; ring collectives send a tensor x (N - 1) / N."""
    ring = parameters * (gpus - 1) / gpus
    units = _GRADIENT_UNITS[stage] * gradient_bytes + _GATHERS[stage] * _ADAM.parameters
    return StageShare(
        parameters=parameters * _ADAM.parameters / (gpus if stage == 3 else 1),
        gradients=parameters * _ADAM.gradients / (gpus if stage >= 2 else 1),
        optimizer=parameters * (_ADAM.master + _ADAM.states) / (gpus if stage else 1),
        sent=units * ring,
        of_ddp=units / (_GRADIENT_UNITS[0] * gradient_bytes),
        seconds=None if network is None else units * ring / network,
    )
