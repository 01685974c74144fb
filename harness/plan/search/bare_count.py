# SPDX-License-Identifier: Apache-2.0
"""The model states of a bare count of parameters, as the ZeRO paper's table counts them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from harness.errors import ExitCode, UserError
from harness.facts.devices import find_device
from harness.plan.search.plan_request import min_gpus_for_states, validate_count, validate_gpu
from harness.plan.weights.bytes_per_parameter import BytesPerParameter

_ADAM = BytesPerParameter(2, 2, 4, 8)
_MAX_GPUS = 1_000_000


@dataclass(frozen=True, slots=True)
class ModelStates:
    """Bytes a rank by ZeRO stage; `raw_floor_gpus` would hold the states alone, None where the GPU is not known."""

    parameters: float
    gpus: int
    stage: int | None
    gpu: str | None
    recipe: BytesPerParameter
    by_stage: Mapping[int, float]
    raw_floor_gpus: int | None


def count_model_states(parameters: float, gpus: int, stage: int | None, gpu: str | None) -> ModelStates:
    """16-bit weights and Adam, nothing else. Raises UserError for a count or a GPU that does not exist."""
    findings = [*validate_count("--gpus", gpus, _MAX_GPUS), *(validate_gpu(gpu) if gpu else [])]
    if findings:
        raise UserError(findings, ExitCode.USAGE)
    device = find_device(gpu or "")
    floor = min_gpus_for_states(_ADAM.per_rank(parameters, 1, 0), device) if device and not device.is_cpu else None
    by_stage = {each: _ADAM.per_rank(parameters, gpus, each) for each in range(4)}
    return ModelStates(parameters, gpus, stage, gpu, _ADAM, by_stage, floor)
