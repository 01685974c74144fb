# SPDX-License-Identifier: Apache-2.0
"""A way out where nothing fits: the closest settings; how many ranks, how much host memory or disks would do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from harness.facts.devices import Device
from harness.facts.model_lookup import ModelFacts
from harness.plan.memory.memory_estimate import HOST_RESERVE, Capacity, check_fit
from harness.plan.search.alternatives import (
    STAGES_AND_OFFLOADS,
    Alternative,
    is_stage_supported,
    with_offload,
)
from harness.plan.search.sequence_lengths import find_longest
from harness.plan.search.settings_search import HEADROOM, filter_fitting
from harness.plan.settings.checkpointed_layers import with_checkpointing
from harness.plan.settings.plan_settings import OffloadDevice, PlanSettings, settings_of
from harness.run.resolved_run import ResolvedRun


@dataclass(frozen=True, slots=True)
class NearestFit:
    """`closest` lacks least: disks alone, where disks would do, else host memory alone, where that would. `host_bytes`:
    host memory with which the same ranks would do by the middle of the estimates, as in the table of ways;
    `sure_host_bytes`: by their whole range; `nvme_bytes`: disks of a host with which they would, where nobody said that
    there are any. `length`: tokens of the longest row that fits here.
    """

    closest: Alternative | None
    host_bytes: int | None
    nvme_bytes: int | None
    length: int | None = None
    sure_host_bytes: int | None = None


def find_nearest_fit(
    run: ResolvedRun, model: ModelFacts, device: Device | None, capacity: Capacity, alternatives: Sequence[Alternative]
) -> NearestFit | None:
    """`alternatives`: those of the run, none of which fits. None while the run's ranks are unknown."""
    settings = settings_of(run)
    if settings is None:
        return None
    with_disks = [each for each in alternatives if capacity.nvme is None and _lacks(each, capacity, "nvme")]
    with_host = [each for each in alternatives if each.fit.fits is False and _lacks(each, capacity, "host", sure=False)]
    surely = [each for each in with_host if _lacks(each, capacity, "host")]
    closest = _closest(alternatives, with_disks, surely)
    hosts = [min((each.host_peak for each in some), default=None) for some in (with_host, surely)]
    host_bytes, sure = (None if peak is None else enough_host(peak) for peak in hosts)
    nvme_bytes = enough_disks(min(each.nvme_bytes for each in with_disks)) if with_disks else None
    # What the user's own keys exclude was not searched.
    searched = {(s.stage, s.optimizer_device, s.param_device) for s in (each.settings for each in alternatives)}
    places = [place for place in STAGES_AND_OFFLOADS if place in searched and "nvme" not in place]
    return NearestFit(closest, host_bytes, nvme_bytes, _shorter(settings, model, places, device, capacity), sure)


def find_without_offload(run: ResolvedRun, capacity: Capacity, others: Sequence[Alternative]) -> Alternative | None:
    """The same ranks without offload: the fastest that fit, else those of the least GPU memory; None of other runs."""
    settings = settings_of(run)
    kept = [each for each in others if not offloads(each.settings)]
    if settings is None or not offloads(settings) or not kept or capacity.gpu is None:
        return None
    if fitting := list(filter_fitting(kept)):
        return min(fitting, key=lambda each: (each.fit.uncertain is not None, each.time.seconds if each.time else 0.0))
    return min(kept, key=lambda each: each.gpu_peak)


def offloads(settings: PlanSettings) -> bool:
    """Does it keep states or parameters outside the GPUs?"""
    return (settings.optimizer_device, settings.param_device) != ("none", "none")


def _closest(
    alternatives: Sequence[Alternative], with_disks: Sequence[Alternative], with_host: Sequence[Alternative]
) -> Alternative | None:
    """Of those that lack one thing which a user can add, the one that needs the least of it; else the one that lacks
    the smallest share.
    """
    if with_disks:
        return min(with_disks, key=lambda each: (each.nvme_bytes >> 30, each.time.seconds if each.time else 0.0))
    if with_host:
        return min(with_host, key=lambda each: each.host_peak)
    too_large = [each for each in alternatives if each.fit.fits is False]
    return max(too_large, key=lambda each: each.fit.headroom or 0.0, default=None)


_SHORTEST = 256


def _shorter(
    settings: PlanSettings,
    model: ModelFacts,
    places: Sequence[tuple[int, OffloadDevice, OffloadDevice]],
    device: Device | None,
    capacity: Capacity,
) -> int | None:
    """Tokens of the longest sequence with which the thriftiest settings fit on the same ranks."""
    if settings.seq_length <= _SHORTEST:
        return None
    thrifty = with_checkpointing(replace(settings, micro_batch=settings.sequences_a_row), checkpointing=True)
    limit = settings.seq_length - 1
    lengths = (
        find_longest(model, with_offload(thrifty, *place), _SHORTEST, device, capacity, headroom=HEADROOM, limit=limit)
        for place in places
        if is_stage_supported(place[0], thrifty)
    )
    return max(lengths, default=0) or None


def enough_host(peak: int) -> int:
    """Bytes of a host that holds such a peak beside the system, with the headroom of everything that fits."""
    return int(peak / (1 - HOST_RESERVE) / (1 - HEADROOM)) + 1


def enough_disks(size: int) -> int:
    """Bytes of disks of which so many leave the same headroom."""
    return int(size / (1 - HEADROOM)) + 1


def _lacks(each: Alternative, capacity: Capacity, tier: Literal["host", "nvme"], *, sure: bool = True) -> bool:
    """Is it this alone that it lacks: would it fit, with headroom, if there were any amount of it? `sure`: by the whole
    range of the estimate.
    """
    fit = check_fit(each.memory, replace(capacity, **{tier: 1 << 60}))
    fits = fit.fits is not False and "NVMe" not in fit.unknown and (fit.headroom or 0.0) >= HEADROOM
    return (
        fits
        and not (sure and fit.uncertain)
        and (each.fit.binding == "host memory" if tier == "host" else bool(each.nvme_bytes))
    )
