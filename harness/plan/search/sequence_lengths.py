# SPDX-License-Identifier: Apache-2.0
"""The longest sequence that fits, by setting: offload, Ulysses degree, recomputation, at micro-batch 1.

Arithmetic only; the caller runs the gates and asks the plan of the result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import lcm

from harness.facts.devices import Device
from harness.facts.model_lookup import ModelFacts
from harness.plan.memory.memory_estimate import Capacity, Fit, check_fit, estimate_memory
from harness.plan.search.alternatives import STAGES_AND_OFFLOADS, is_stage_supported, with_offload
from harness.plan.settings.checkpointed_layers import list_checkpointing
from harness.plan.settings.plan_settings import PlanSettings
from harness.plan.time.rates import Rates
from harness.plan.time.step_time import StepTime, estimate_step_time

MAX_LENGTH = 1 << 24
DEFAULT_UNIT = 1024
HEADROOM = 0.05
_SEQUENCE_SIZES = (2, 4, 8, 16, 32, 64)


@dataclass(frozen=True, slots=True)
class LongestSetting:
    """A setting at the longest sequence that it holds, in tokens; `time` of its step, None for an unknown GPU."""

    settings: PlanSettings
    length: int
    time: StepTime | None


def list_settings(model: ModelFacts, run: PlanSettings, variants: Sequence[PlanSettings] = ()) -> list[PlanSettings]:
    """Sketches of the run at micro-batch 1: every stage and offload, every Ulysses degree, recomputation on and off.

    `variants`: the run with other keys, each combined with all of these. The global batch stays; degrees that do not
    divide it are left out.
    """
    found: dict[PlanSettings, None] = {}
    for base in (run, *variants):
        for divided in _sequence_settings(model, base):
            for stage, optimizer_device, param_device in STAGES_AND_OFFLOADS:
                if not is_stage_supported(stage, divided):
                    continue
                for settings in reversed(list_checkpointing(divided)):
                    found[with_offload(settings, stage, optimizer_device, param_device)] = None
    return list(found)


def _sequence_settings(model: ModelFacts, run: PlanSettings) -> Iterator[PlanSettings]:
    sequences = run.micro_batch * run.accumulation * run.data_parallel_size
    degrees = {run.sequence_parallel_size}
    if run.tensor_parallel_size == run.pipeline_parallel_size == 1:
        degrees |= {1, *(size for size in _SEQUENCE_SIZES if size <= run.ranks_per_host)}
    for degree in sorted(degrees):
        data = run.zero_world_size // degree
        if data * degree != run.zero_world_size or model.heads % degree or sequences % data:
            continue
        yield replace(
            run,
            micro_batch=run.sequences_a_row,
            accumulation=sequences // data // run.sequences_a_row,
            sequence_parallel_size=degree,
            data_parallel_size=data,
        )


def unit_of(settings: PlanSettings, pad_to_multiple_of: int | None) -> int:
    """Lengths are multiples of this: of the padding, else of 1,024, and of the Ulysses degree."""
    return lcm(pad_to_multiple_of or DEFAULT_UNIT, settings.sequence_parallel_size)


def fit_at(model: ModelFacts, settings: PlanSettings, length: int, device: Device | None, capacity: Capacity) -> Fit:
    """Does the setting hold sequences of so many tokens?"""
    memory = estimate_memory(model, settings.with_values(seq_length=length), device)
    fit = check_fit(memory, capacity)
    return Fit(False, "NVMe") if memory.nvme_bytes and capacity.nvme is None else fit


def find_longest(
    model: ModelFacts,
    settings: PlanSettings,
    unit: int,
    device: Device | None,
    capacity: Capacity,
    *,
    headroom: float = 0.0,
    limit: int = MAX_LENGTH,
) -> int:
    """Tokens of the longest sequence that leaves this share of memory free, a multiple of `unit`; 0 where none does."""

    def holds(units: int) -> bool:
        fit = fit_at(model, settings, units * unit, device, capacity)
        return fit.fits is not False and (fit.headroom is None or fit.headroom >= headroom)

    return largest_number(holds, limit // unit) * unit


def largest_number(holds: Callable[[int], bool], most: int) -> int:
    """The largest number from 1 to `most` for which this is true, 0 where it is for none; true below, false above."""
    low, high = 0, 1
    while high <= most and holds(high):
        low, high = high, high * 2
    high = min(high, most + 1)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low


def rank_settings(
    model: ModelFacts,
    settings: Sequence[PlanSettings],
    pad_to_multiple_of: int | None,
    device: Device | None,
    capacity: Capacity,
    rates: Rates,
    limit: int = MAX_LENGTH,
) -> list[LongestSetting]:
    """Every setting that holds anything at its longest, the longest first, of equals the faster one."""
    found = []
    for each in settings:
        length = find_longest(model, each, unit_of(each, pad_to_multiple_of), device, capacity, limit=limit)
        if length:
            at_length = replace(each, seq_length=length)
            found.append(LongestSetting(at_length, length, estimate_step_time(model, at_length, device, rates)))
    return sorted(found, key=lambda one: (-one.length, one.time.seconds if one.time else 0.0))
