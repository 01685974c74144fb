# SPDX-License-Identifier: Apache-2.0
"""A way out where nothing fits: the closest settings; how many ranks, how much host memory or disks would do."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from harness.facts.devices import Device
from harness.facts.model_lookup import ModelFacts
from harness.plan.memory.memory_estimate import HOST_RESERVE, Capacity
from harness.plan.search.alternatives import (
    STAGES_AND_OFFLOADS,
    Alternative,
    evaluate_alternative,
    is_stage_supported,
    with_offload,
)
from harness.plan.search.sequence_lengths import find_longest
from harness.plan.search.settings_search import HEADROOM, CandidateSettings, filter_fitting, fits_with_headroom
from harness.plan.settings.checkpointed_layers import with_checkpointing
from harness.plan.settings.plan_settings import OffloadDevice, PlanSettings, settings_of
from harness.run.resolved_run import ResolvedRun, resolve_run

_MAX_HOSTS = 4096
_GPUS_OF_A_HOST = 8
Place = tuple[int, OffloadDevice, OffloadDevice]
_ON_GPUS = tuple(place for place in STAGES_AND_OFFLOADS if place[1:] == ("none", "none"))


@dataclass(frozen=True, slots=True)
class NearestFit:
    """`closest` lacks least: disks alone, where disks would do, else host memory alone, where that would. `ranks`: the
    fewest of the same kind that would do, on hosts of `ranks_per_host`, None where 4,096 hosts do not. `host_bytes`:
    host memory with which the same ranks would do; `nvme_bytes`: disks of a host with which they would, where nobody
    said that there are any. `length`: tokens of the longest row that fits here. `is_unsure`: of `ranks`.
    """

    closest: Alternative | None
    ranks: int | None
    ranks_per_host: int
    host_bytes: int | None
    nvme_bytes: int | None
    length: int | None = None
    is_unsure: bool = False


def find_nearest_fit(
    run: ResolvedRun, model: ModelFacts, device: Device | None, capacity: Capacity, alternatives: Sequence[Alternative]
) -> NearestFit | None:
    """`alternatives`: those of the run, none of which fits. None while the run's ranks are unknown."""
    settings = settings_of(run)
    if settings is None:
        return None
    closest = _closest(alternatives, capacity)
    host_bytes, nvme_bytes = _enough_host(alternatives, capacity), _enough_disks(alternatives, capacity)

    ranks, per_host = _fewest_ranks(run, settings, model, device, capacity)
    if is_unsure := ranks is None:
        ranks, per_host = _fewest_ranks(run, settings, model, device, capacity, surely=False)
    length = _shorter(run, model, device, capacity)
    return NearestFit(closest, ranks, per_host, host_bytes, nvme_bytes, length, is_unsure)


def _fewest_ranks(
    run: ResolvedRun,
    settings: PlanSettings,
    model: ModelFacts,
    device: Device | None,
    capacity: Capacity,
    places: Sequence[Place] = STAGES_AND_OFFLOADS,
    surely: bool = True,
) -> tuple[int | None, int]:
    """The fewest of more ranks than these with which it fits, None where 4,096 hosts do not, and those of a host."""

    def would_fit(ranks: int, ranks_per_host: int) -> bool:
        return can_fit(with_ranks(run, ranks, ranks_per_host), model, device, capacity, places, surely)

    world, per_host = settings.world_size, settings.ranks_per_host
    inside = [count for count in (2, 4, _GPUS_OF_A_HOST) if world < count and settings.num_hosts == 1]
    ranks = next((count for count in inside if would_fit(count, count)), None)
    if ranks is not None:
        return ranks, ranks
    per_host = max(per_host, _GPUS_OF_A_HOST) if settings.num_hosts == 1 else per_host
    hosts = _fewest_hosts(lambda hosts: would_fit(hosts * per_host, per_host), world // per_host)
    return None if hosts is None else hosts * per_host, per_host


class WithoutOffload(NamedTuple):
    """The same ranks without offload: the settings that need least of a GPU, the fastest ones where some fit; and where
    none does, the fewest ranks that would do, None where 4,096 hosts do not.
    """

    thriftiest: Alternative
    ranks: int | None


def find_without_offload(
    run: ResolvedRun, model: ModelFacts, device: Device | None, capacity: Capacity, alternatives: Sequence[Alternative]
) -> WithoutOffload | None:
    """The answer to "why offload?"; None of a run that does not, and where nobody knows the GPU's memory."""
    settings = settings_of(run)
    kept = [each for each in alternatives if not _offloads(each.settings)]
    if settings is None or not _offloads(settings) or not kept or capacity.gpu is None:
        return None
    if fitting := list(filter_fitting(kept)):
        return WithoutOffload(min(fitting, key=lambda each: each.time.seconds if each.time else 0.0), None)
    ranks, _ = _fewest_ranks(run, settings, model, device, capacity, _ON_GPUS)
    return WithoutOffload(min(kept, key=lambda each: each.gpu_peak), ranks)


def _offloads(settings: PlanSettings) -> bool:
    return (settings.optimizer_device, settings.param_device) != ("none", "none")


def _closest(alternatives: Sequence[Alternative], capacity: Capacity) -> Alternative | None:
    """Of those that lack one thing which a user can add, the one that needs the least of it; else the one that lacks
    the smallest share.
    """
    with_disks = [each for each in alternatives if _lacks_disks(each)]
    with_host = [
        each for each in alternatives if each.fit.binding == "host memory" and _fits_gpu_and_disks(each, capacity)
    ]
    if with_disks and capacity.nvme is None:
        return min(with_disks, key=lambda each: (each.nvme_bytes >> 30, each.time.seconds if each.time else 0.0))
    if with_host:
        return min(with_host, key=lambda each: each.host_peak)
    too_large = [each for each in alternatives if each.fit.fits is False]
    return max(too_large, key=lambda each: each.fit.headroom or 0.0, default=None)


_SHORTEST = 256


def _shorter(run: ResolvedRun, model: ModelFacts, device: Device | None, capacity: Capacity) -> int | None:
    """Tokens of the longest sequence with which the thriftiest settings fit on the same ranks."""
    settings = settings_of(run)
    if settings is None or settings.seq_length <= _SHORTEST:
        return None
    thrifty = with_checkpointing(replace(settings, micro_batch=settings.sequences_a_row), checkpointing=True)
    places = [place for place in STAGES_AND_OFFLOADS if is_stage_supported(place[0], thrifty) and "nvme" not in place]
    limit = settings.seq_length - 1
    lengths = (
        find_longest(model, with_offload(thrifty, *place), _SHORTEST, device, capacity, headroom=HEADROOM, limit=limit)
        for place in places
    )
    return max(lengths, default=0) or None


def _fewest_hosts(would_fit: Callable[[int], bool], too_few: int) -> int | None:
    """Doubling, then halving the distance: the fewest of more than `too_few`."""
    low, high = too_few, max(2 * too_few, too_few + 1)
    while not would_fit(high):
        low, high = high, 2 * high
        if high > _MAX_HOSTS:
            return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if would_fit(middle) else (middle, high)
    return high


def with_ranks(run: ResolvedRun, ranks: int, ranks_per_host: int) -> ResolvedRun:
    """The run on more hosts of its kind, with about as many sequences a step: a multiple of the ranks."""
    spec = run.spec
    dims = run.parallel_dims
    sequences = run.batch.global_batch or ranks
    data = max(1, ranks // dims.model_parallel_size)
    train = spec.train.model_copy(
        update={
            "per_device_train_batch_size": 1,
            "global_batch_size": data * max(1, round(sequences / data)),
            "gradient_accumulation_steps": None,
        }
    )
    cluster = spec.cluster.model_copy(
        update={"gpus_per_node": ranks_per_host, "num_nodes": max(1, ranks // ranks_per_host)}
    )
    spec = spec.model_copy(update={"train": train, "cluster": cluster})
    return resolve_run(spec, name=run.name, world_size=ranks, kind=run.kind)


def can_fit(
    run: ResolvedRun,
    model: ModelFacts,
    device: Device | None,
    capacity: Capacity,
    places: Sequence[Place] = STAGES_AND_OFFLOADS,
    surely: bool = True,
) -> bool:
    """Do the thriftiest settings fit: a sequence at a time, with checkpointing? `surely`: at the range's most, too."""
    settings = settings_of(run)
    if settings is None:
        return False
    candidates = CandidateSettings(run, model)
    a_row, rows = settings.sequences_a_row, settings.rows * settings.accumulation
    thrifty = with_checkpointing(replace(settings, micro_batch=a_row, accumulation=rows), checkpointing=True)
    for stage, optimizer_device, param_device in reversed(places):
        if not is_stage_supported(stage, thrifty):
            continue
        other = candidates.resolve(with_offload(thrifty, stage, optimizer_device, param_device))
        found = None if other is None else evaluate_alternative(model, settings, other, device, capacity)
        if found is not None and fits_with_headroom(found) and not (surely and found.fit.uncertain):
            return True
    return False


def _enough_host(alternatives: Sequence[Alternative], capacity: Capacity) -> int | None:
    """The least host memory with which one of them fits that lacks nothing else."""
    if capacity.host is None:
        return None
    needs = [
        int(each.host_peak / (1 - HOST_RESERVE) / (1 - HEADROOM)) + 1
        for each in alternatives
        if each.fit.binding == "host memory" and _fits_gpu_and_disks(each, capacity)
    ]
    return min(needs, default=None)


def _fits_gpu_and_disks(each: Alternative, capacity: Capacity) -> bool:
    gpu_fits = capacity.gpu is None or each.gpu_peak <= capacity.gpu * (1 - HEADROOM)
    return gpu_fits and (not each.nvme_bytes or (capacity.nvme is not None and each.nvme_bytes <= capacity.nvme))


def _enough_disks(alternatives: Sequence[Alternative], capacity: Capacity) -> int | None:
    """The smallest disks with which one of them fits, where their size is unknown."""
    if capacity.nvme is not None:
        return None
    needs = [each.nvme_bytes for each in alternatives if _lacks_disks(each)]
    return int(min(needs) / (1 - HEADROOM)) + 1 if needs else None


def _lacks_disks(each: Alternative) -> bool:
    """Does it surely fit but for disks of unknown size?"""
    has_room = each.fit.uncertain is None and (each.fit.headroom or 0.0) >= HEADROOM
    return bool(each.nvme_bytes) and each.fit.fits is None and has_room
