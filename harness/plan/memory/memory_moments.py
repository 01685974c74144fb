# SPDX-License-Identifier: Apache-2.0
"""Moments of a phase: memory of one of them is not there at another. The moment that holds most is the phase's peak."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from harness.plan.memory.memory_items import MemoryItem, Phase, Tier

MOMENTS: Mapping[Phase, tuple[str, ...]] = {
    "load": ("build", "flatten", "masters", "engine"),
    "forward": ("forward layer", "loss", "forward copy"),
    "backward": ("loss gradient", "backward layer", "layer gradients", "backward copy", "all-reduce"),
    "step": ("norm", "update"),
    "save": ("weights saved", "states saved"),
    "resume": ("weights read", "states read"),
}
"""Building the model, flattening its weights, making masters, all else of the engine. A layer computes, head and loss
compute, their gradients, a layer is differentiated, its gradients are reduced; while gathered parameters are copied
out of a buffer; while stage 0 reduces all gradients, after the last layer. The norm of the gradients, and the
optimizer. The files of a checkpoint.
"""


def at_moments(item: MemoryItem, *moments: str) -> MemoryItem:
    """The item at these moments alone, of the phases that have them."""
    return replace(item, moments=moments)


def keep_largest_moments(items: Iterable[MemoryItem]) -> list[MemoryItem]:
    """Of each tier and phase what is there at its largest moment."""
    candidates = list(items)
    chosen: dict[tuple[Tier, Phase], str] = {}
    for tier in ("gpu", "host", "nvme"):
        for phase in MOMENTS:
            chosen[tier, phase] = _largest_moment(candidates, tier, phase)
    result = []
    for item in candidates:
        phases = tuple(each for each in item.phases if is_at(item, each, chosen.get((item.tier, each), "")))
        if phases:
            result.append(item if phases == item.phases else replace(item, phases=phases))
    return result


def is_at(item: MemoryItem, phase: Phase, moment: str) -> bool:
    """Is the item there at this moment of this phase? One that names no moment of a phase is there all the time."""
    named = [name for name in item.moments if name in MOMENTS.get(phase, ())]
    return not named or moment in named


def _largest_moment(items: Sequence[MemoryItem], tier: Tier, phase: Phase) -> str:
    there = [item for item in items if item.tier == tier and phase in item.phases and not item.assumed]
    return max(MOMENTS[phase], key=lambda moment: sum(item.bytes for item in there if is_at(item, phase, moment)))
