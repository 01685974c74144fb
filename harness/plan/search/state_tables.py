# SPDX-License-Identifier: Apache-2.0
"""Tables of model states: sizes of models by recipe, stage and GPUs; and the GPUs that a measured peak leaves room for.

States as DeepSpeed has them, parameters times the bytes of a recipe (table 1 of arXiv 1910.02054); no buffers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil

from harness.errors import ExitCode, UserError
from harness.facts.devices import Device, find_device, usual_gpus_per_host
from harness.findings import Finding, Fix
from harness.plan.search.plan_request import min_gpus_for_states, nominal_memory, validate_count, validate_gpu
from harness.plan.weights.optimizer_states import BytesPerParameter

MODEL_SIZES: Mapping[str, float] = {"124M": 124e6, "1.3B": 1.3e9, "8B": 8e9, "13B": 13e9, "70B": 70e9, "405B": 405e9}
GPU_COUNTS = (8, 64, 256)
RECIPES: Mapping[str, BytesPerParameter] = {
    "fp32": BytesPerParameter(4, 4, 0, 8),
    "mixed": BytesPerParameter(2, 2, 4, 8),
    "mixed, 8-bit states": BytesPerParameter(2, 2, 4, 2),
}
"""Adam in fp32; 16-bit weights and gradients with fp32 masters; the same with two 8-bit moments (arXiv 2110.02861)."""
OTHER_OPTIMIZERS: Mapping[str, BytesPerParameter] = {
    "fp32, one state": BytesPerParameter(4, 4, 0, 4),
    "fp32, no state": BytesPerParameter(4, 4, 0, 0),
    "mixed, one state": BytesPerParameter(2, 2, 4, 4),
    "mixed, no state": BytesPerParameter(2, 2, 4, 0),
}
"""SGD with momentum and Lion keep one state in fp32, SGD without momentum none."""
_MAX_GPUS = 1_000_000


@dataclass(frozen=True, slots=True)
class StatesRow:
    """One model and recipe: bytes in all, and bytes a GPU by (GPUs, stage)."""

    name: str
    parameters: float
    recipe_name: str
    recipe: BytesPerParameter
    per_gpu: Mapping[tuple[int, int], float]

    @property
    def total(self) -> float:
        """Bytes of all states."""
        return self.parameters * self.recipe.total


def tabulate_states(
    sizes: Mapping[str, float] = MODEL_SIZES,
    gpu_counts: Sequence[int] = GPU_COUNTS,
    recipes: Mapping[str, BytesPerParameter] = RECIPES,
) -> list[StatesRow]:
    """A row for each model and recipe. Raises UserError for a number of GPUs that does not exist."""
    findings = [finding for gpus in gpu_counts for finding in validate_count("--gpus", gpus, _MAX_GPUS)]
    if findings:
        raise UserError(findings, ExitCode.USAGE)
    return [
        StatesRow(
            name,
            parameters,
            recipe_name,
            recipe,
            {(gpus, stage): recipe.per_rank(parameters, gpus, stage) for gpus in gpu_counts for stage in range(4)},
        )
        for name, parameters in sizes.items()
        for recipe_name, recipe in recipes.items()
    ]


@dataclass(frozen=True, slots=True)
class PeakRow:
    """One ZeRO stage with a measured non-state peak: bytes a GPU by number of GPUs, and the least that fits, if any."""

    stage: int
    per_gpu: Mapping[int, float]
    min_gpus: int | None


@dataclass(frozen=True, slots=True)
class PeakTable:
    """`capacity` and `peak`: bytes of a GPU, and those of them that a run without states was measured to need."""

    parameters: float
    recipe_name: str
    recipe: BytesPerParameter
    gpu: str
    capacity: int
    peak: int
    raw_floor_gpus: int
    rows: tuple[PeakRow, ...]


def tabulate_peak(
    parameters: float, recipe_name: str, gpu: str, peak: int, gpus: int | None = None, gpus_per_host: int | None = None
) -> PeakTable:
    """Does the run fit on `gpus`, or on the first three numbers of whole hosts that hold the states alone?

    The capacity is the vendor's (80 GB: 80e9), which the literature divides by. The peak is taken to be the same on any
    number of GPUs, as with one micro-batch. Raises UserError with everything that is wrong.
    """
    per_host = usual_gpus_per_host(gpu) if gpus_per_host is None else gpus_per_host
    findings = [
        *validate_gpu(gpu),
        *validate_count("--gpus-per-node", per_host, 1024),
        *(validate_count("--gpus", gpus, _MAX_GPUS) if gpus is not None else ()),
    ]
    device = find_device(gpu)
    if device is not None and device.is_cpu:
        findings.append(Finding("MM003", "error", "a CPU has no memory of its own", fix=Fix("give a kind of GPU")))
    if not findings and device is not None:
        findings += _validate_peak(peak, device)
    if findings or device is None:
        raise UserError(findings, ExitCode.USAGE)
    recipe, capacity = {**RECIPES, **OTHER_OPTIMIZERS}[recipe_name], nominal_memory(device)
    floor = min_gpus_for_states(recipe.per_rank(parameters, 1, 0), device)
    first = ceil(floor / per_host) * per_host
    counts = [first, first + per_host, first + 2 * per_host] if gpus is None else [gpus]
    rows = tuple(
        PeakRow(
            stage,
            {count: recipe.per_rank(parameters, count, stage) + peak for count in counts},
            _min_gpus(parameters, recipe, stage, capacity - peak),
        )
        for stage in range(4)
    )
    return PeakTable(parameters, recipe_name, recipe, device.name, capacity, peak, floor, rows)


def _validate_peak(peak: int, device: Device) -> list[Finding]:
    capacity = nominal_memory(device)
    if 0 < peak < capacity:
        return []
    message = f"a peak of {peak / 1e9:,.1f} GB without the states leaves no room on a GPU of {capacity / 1e9:.0f} GB"
    message = message if peak else "a peak of 0 bytes is no measurement"
    return [Finding("MM004", "error", message, fix=Fix("give `--non-state-peak` the measured size, such as `22GB`"))]


def _min_gpus(parameters: float, recipe: BytesPerParameter, stage: int, room: int) -> int | None:
    """The least number of GPUs whose share fits the room; None where what a stage leaves whole is too large."""
    alone = recipe.per_rank(parameters, 1, 0)
    whole = 2 * recipe.per_rank(parameters, 2, stage) - alone
    if alone <= room:
        return 1
    if whole >= room or whole >= alone:
        return None
    return ceil((alone - whole) / (room - whole))
