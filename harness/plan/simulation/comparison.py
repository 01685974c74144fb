# SPDX-License-Identifier: Apache-2.0
"""A plan next to the simulation of the same run: by phase, and by group of memory at the peak of each device.

Both sides are tensors of one rank: the plan's rows without the CUDA context, NCCL, the allocator's slack and the
process, which no simulation has.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from harness.plan.memory.memory_estimate import ITEM_GROUPS, MemoryEstimate, estimate_memory
from harness.plan.memory.memory_items import MemoryItem, Phase, Tier
from harness.plan.planner import Plan
from harness.plan.settings.plan_settings import PlanSettings

_DEVICES: tuple[tuple[Tier, str], ...] = (("gpu", "cuda"), ("host", "cpu"))
_SIMULATED_PHASES: Mapping[Phase, tuple[str, ...]] = {
    "load": ("load",),
    "forward": ("forward",),
    "backward": ("backward",),
    "step": ("first step", "step"),
    "save": ("save",),
    "resume": ("resume",),
}
_PHASE_NAMES: Mapping[str, Phase] = {name: name for name in _SIMULATED_PHASES}
_BUFFERS = "buffers and temporaries"
GROUP_OF_LINE: tuple[tuple[str, str | None, str], ...] = (
    (r"^rounding of page-locked", None, _BUFFERS),
    (r"_setup_for_real_optimizer|independent_gradient_partition|ipg_bucket|setup_buckets", "cuda", _BUFFERS),
    (r"_setup_for_real_optimizer|cast_when_stepped|cpu_offload_single_grad|host_gradients", "cpu", "gradients"),
    (r"swap_tensor|swap_buffer|nvme_|one_pass_adam|overlapped_step", None, _BUFFERS),
    (r"runtime/checkpoint/|checkpoint/utils|simulated_save", None, _BUFFERS),
    (r"_create_fp32_partitions|single_partition_of_fp32|fp32_groups_flat|_link_all_hp_params", None, "masters"),
    (
        r"(cpu|fused)_adam\.py|lion|adagrad|muon|torch/optim|initialize_optimizer_states|_init_group",
        None,
        "optimizer states",
    ),
    (
        r"defragment|_create_fp16_partitions|flatten_copy|_partition_param|_all_?gather|partition_parameters\.py",
        None,
        "parameters",
    ),
    (r"chunked_cross_entropy|loss_utils|loss\.py", None, "activations"),
    (r"_avg_scatter|reduce_scatter|average_tensor|allreduce|_constant_buffered_norm|get_grad_norm", None, _BUFFERS),
    (r"stage_1_and_2\.py.* __init__", "cuda", "parameters"),
    (r"stage3\.py|stage_1_and_2\.py|bf16_optimizer\.py", None, "gradients"),
    (
        r"transformers/|zero/linear\.py|autograd|sequence_parallel|activation_checkpointing|models/(kept_att|tiled)",
        None,
        "activations",
    ),
)
"""(pattern of a line, device or any, group): the first that matches. Of DeepSpeed 0.19.8."""
ROUNDING = "rounding of page-locked memory"
"""The line under which the worker counts it (`harness/runtime/simulation/memory_tracker.py`)."""
OTHER = "other"
TOLERANCE = 0.02
_NEGLIGIBLE = 32 << 20
"""Bytes: buffers of a batch, norms and other scalars, which the plan does not count."""


def is_different(planned: int, simulated: int) -> bool:
    """Is the plan off by more than the tolerance, and by more than small buffers?"""
    return abs(planned - simulated) > max(TOLERANCE * simulated, _NEGLIGIBLE)


class NamedDifference(NamedTuple):
    """A reason why plan and simulation differ: the simulation is that of other settings. `simulated_as` changes the
    plan's, or returns None where it does not apply. A phase has this reason only where the plan of those settings
    agrees with the simulation.
    """

    tier: Tier
    simulated_as: Callable[[PlanSettings], PlanSettings | None]
    words: str


def _with_one_document_a_row(settings: PlanSettings) -> PlanSettings | None:
    is_spread = settings.packing and settings.sequence_parallel_size > 1
    return replace(settings, packing=False) if is_spread and settings.attention == "sdpa" else None


NAMED_DIFFERENCES: tuple[NamedDifference, ...] = (
    NamedDifference(
        "gpu",
        _with_one_document_a_row,
        "whether a row holds several documents is a value of its positions, and a simulation has no values: with"
        " Ulysses the plan counts the mask of whole rows, and the simulation has no mask"
        " (harness/runtime/parallel/sequence_parallel.py `is_packed`; DeepSpeed 0.19.8 passes a mask on,"
        " runtime/sequence_parallel/ulysses_sp.py:265)",
    ),
)
"""All differences of more than 2 % over the large recipes: `benchmarks/simulate.py`."""


@dataclass(frozen=True, slots=True)
class PhaseRow:
    """Bytes a rank on one tier in one phase. `lines`: who held the simulated bytes, most first."""

    tier: Tier
    phase: str
    planned: int | None
    simulated: int
    lines: tuple[tuple[str, int], ...] = ()
    reason: str = ""
    """Why the plan differs, where it is one of `NAMED_DIFFERENCES`."""

    @property
    def differs(self) -> bool:
        """Is the plan off by more than the tolerance?"""
        return self.planned is not None and is_different(self.planned, self.simulated)


@dataclass(frozen=True, slots=True)
class GroupRow:
    """Bytes a rank of one group at the simulated peak of a tier, with the line that holds most of them."""

    tier: Tier
    group: str
    planned: int
    simulated: int
    line: str


@dataclass(frozen=True, slots=True)
class SimulationComparison:
    """Rows by phase, and by group at the phase in which a tier holds most."""

    phases: tuple[PhaseRow, ...]
    groups: tuple[GroupRow, ...]
    peak_phase: Mapping[Tier, str] = field(default_factory=dict)


def compare_rank(plan: Plan, rank: int, result: Mapping[str, Any]) -> SimulationComparison:
    """The plan of one rank next to the worker's peaks. Raises ValueError for a plan without memory."""
    if plan.model is None or plan.settings is None or plan.memory is None:
        raise ValueError("the plan has no memory")
    if plan.async_offload is not None:
        return compare_simulation(plan.memory, result)
    index = rank // plan.settings.tensor_parallel_size % plan.settings.zero_world_size
    settings = replace(plan.settings, rank=index)
    named = []
    for difference in NAMED_DIFFERENCES:
        simulated_as = difference.simulated_as(settings)
        if simulated_as is not None:
            named.append((difference, estimate_memory(plan.model, simulated_as, plan.device)))
    return compare_simulation(estimate_memory(plan.model, settings, plan.device), result, named)


def compare_simulation(
    memory: MemoryEstimate, result: Mapping[str, Any], named: Sequence[tuple[NamedDifference, MemoryEstimate]] = ()
) -> SimulationComparison:
    """The plan's rows next to the worker's peaks. `named`: differences that may be there, each with the plan of what
    is simulated.
    """
    phases: list[PhaseRow] = []
    groups: list[GroupRow] = []
    peak_phase: dict[Tier, str] = {}
    for tier, device in _DEVICES:
        rows = [_phase_row(memory, result["peaks"], tier, device, phase) for phase in _SIMULATED_PHASES]
        rows.append(_evaluation_row(result["peaks"], tier, device))
        known = [_with_reason(row, named) for row in rows if row is not None]
        phases += known
        compared = [row for row in known if row.planned is not None]
        if compared:
            peak = max(compared, key=lambda row: row.simulated)
            peak_phase[tier] = peak.phase
            groups += _group_rows(memory, tier, device, peak)
    return SimulationComparison(tuple(phases), tuple(groups), peak_phase)


def _with_reason(row: PhaseRow, named: Sequence[tuple[NamedDifference, MemoryEstimate]]) -> PhaseRow:
    if not row.differs:
        return row
    for difference, memory in named:
        planned = planned_tensors(memory, row.tier, _PHASE_NAMES[row.phase])
        if difference.tier == row.tier and not is_different(planned, row.simulated):
            return replace(row, reason=difference.words)
    return row


def planned_tensors(memory: MemoryEstimate, tier: Tier, phase: Phase) -> int:
    """Bytes a rank of the plan's rows that are tensors."""
    return sum(item.bytes for item in memory.items_of(tier) if _is_compared(item, phase))


def _is_compared(item: MemoryItem, phase: str) -> bool:
    """Is it a tensor of this rank? The copy for a save in the background stays for the next one, and the simulated
    steps come before the first; the weights in it are those of the rank that writes them, such as rank 0. It copies
    without the page-locked blocks.
    """
    if item.kind == "staged":
        return False
    if item.kind == "save":
        return phase == "save"
    return phase in item.phases and not item.assumed and not item.shared


def group_of_line(line: str, device: str) -> str:
    """The plan's group of memory that a line of code allocates."""
    return next(
        (group for pattern, where, group in GROUP_OF_LINE if where in (None, device) and re.search(pattern, line)),
        OTHER,
    )


def _phase_row(
    memory: MemoryEstimate, peaks: Mapping[str, Any], tier: Tier, device: str, phase: Phase
) -> PhaseRow | None:
    found = [peaks[name][device] for name in _SIMULATED_PHASES[phase] if device in peaks.get(name, {})]
    if not found:
        return None
    peak = max(found, key=lambda entry: entry["bytes"])
    return PhaseRow(tier, phase, planned_tensors(memory, tier, phase), peak["bytes"], _sorted_lines(peak["holders"]))


def _evaluation_row(peaks: Mapping[str, Any], tier: Tier, device: str) -> PhaseRow | None:
    peak = peaks.get("evaluate", {}).get(device)
    return None if peak is None else PhaseRow(tier, "evaluate", None, peak["bytes"], _sorted_lines(peak["holders"]))


def _sorted_lines(holders: Mapping[str, int]) -> tuple[tuple[str, int], ...]:
    return tuple(sorted(holders.items(), key=lambda entry: -entry[1]))


def _group_rows(memory: MemoryEstimate, tier: Tier, device: str, peak: PhaseRow) -> list[GroupRow]:
    planned: dict[str, int] = {}
    for item in memory.items_of(tier):
        if _is_compared(item, peak.phase):
            group = next((name for name, kinds in ITEM_GROUPS.items() if item.kind in kinds), OTHER)
            planned[group] = planned.get(group, 0) + item.bytes
    simulated: dict[str, int] = {}
    first_line: dict[str, str] = {}
    for line, size in peak.lines:
        group = group_of_line(line, device)
        simulated[group] = simulated.get(group, 0) + size
        first_line.setdefault(group, line)
    order = [*ITEM_GROUPS, OTHER]
    return [
        GroupRow(tier, group, planned.get(group, 0), simulated.get(group, 0), first_line.get(group, ""))
        for group in sorted({*planned, *simulated}, key=order.index)
        if planned.get(group, 0) or simulated.get(group, 0)
    ]
