# SPDX-License-Identifier: Apache-2.0
"""The moments of a step, and an item of the memory table: bytes of one kind, on one tier, for one rank, with formula
and source.

`model_states`, `model_states_zero3`, `activation_items` and `transient_memory` make the items; here are only products
and rounding.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Literal, NamedTuple

Tier = Literal["gpu", "host", "nvme"]
Phase = Literal["load", "forward", "backward", "step", "save", "resume", "export"]
PHASES: tuple[Phase, ...] = ("load", "forward", "backward", "step", "save", "resume", "export")
"""In the order of a run: building the model and the engine, a micro-batch, the step, a checkpoint written and read,
the Hugging Face folder made from it.
"""
ENGINE: tuple[Phase, ...] = ("load", "forward", "backward", "step", "save", "resume")
"""From `deepspeed.initialize` on."""
TRAINING: tuple[Phase, ...] = ("forward", "backward", "step", "save")
"""From the first step on."""
OPTIMIZER: tuple[Phase, ...] = (*TRAINING, "resume")
"""From the first step on, and while a checkpoint is read, which has the states."""
MICRO_BATCH: tuple[Phase, ...] = ("forward", "backward")
FORWARD: tuple[Phase, ...] = ("forward",)
BACKWARD: tuple[Phase, ...] = ("backward",)
STEP: tuple[Phase, ...] = ("step",)
SAVE: tuple[Phase, ...] = ("save",)


class MemoryItem(NamedTuple):
    """Bytes of one kind on one tier, for one rank, or for all ranks of a host together where it is `shared`.

    `pinned_blocks`: sizes of its page-locked blocks. `moments`: those of its phases at which it is there, if it is not
    there all the time (`harness.plan.memory.memory_items`).
    """

    tier: Tier
    kind: str
    description: str
    bytes: int
    formula: str
    source: str
    phases: tuple[Phase, ...] = ENGINE
    pinned_blocks: tuple[int, ...] = ()
    assumed: bool = False
    shared: bool = False
    moments: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ElementBytes:
    """`width` bytes for each of `count` elements, which the formula calls `name`."""

    width: int
    count: int
    name: str

    @property
    def bytes(self) -> int:
        """The product."""
        return self.width * self.count

    def __str__(self) -> str:
        return f"{self.width} {'' if self.name.startswith('P') else 'x '}{self.name}"


def memory_item(
    tier: Tier, label: tuple[str, str], amount: ElementBytes, source: str, phases: tuple[Phase, ...] = ENGINE
) -> MemoryItem:
    """An item of (kind, description) with the formula of its amount."""
    return MemoryItem(tier, *label, amount.bytes, str(amount), source, phases)


def pinned_item(
    label: tuple[str, str],
    amount: ElementBytes,
    source: str,
    blocks: tuple[int, ...] = (),
    phases: tuple[Phase, ...] = ENGINE,
) -> MemoryItem:
    """The same in page-locked host memory; `blocks` in elements, by default one of the whole amount."""
    sizes = tuple(amount.width * count for count in blocks or (amount.count,))
    return MemoryItem("host", *label, amount.bytes, str(amount), source, phases, pinned_blocks=sizes)


def pinned_rounding_bytes(items: Iterable[MemoryItem]) -> int:
    """Bytes that torch's pinned allocator adds: it rounds every block up to a power of two (CachingHostAllocator.h)."""
    return sum((1 << (block - 1).bit_length()) - block for item in items for block in item.pinned_blocks if block)


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
    return item._replace(moments=moments)


def keep_largest_moments(items: Iterable[MemoryItem]) -> list[MemoryItem]:
    """Of each tier and phase what is there at its largest moment."""
    candidates = list(items)
    totals: dict[tuple[Tier, Phase], dict[str, int]] = {}
    for item in candidates:  # one that names no moment of a phase adds the same to each
        for phase in item.phases if item.moments else ():
            if (named := totals.get((item.tier, phase))) is None:
                named = totals[item.tier, phase] = dict.fromkeys(MOMENTS.get(phase, ()), 0)
            for moment in () if item.assumed else set(item.moments):
                if moment in named:
                    named[moment] += item.bytes
    chosen = {key: max(named, key=named.__getitem__, default="") for key, named in totals.items()}
    result = []
    for item in candidates:
        phases = item.phases
        if item.moments:
            phases = tuple(each for each in phases if _is_at(item.moments, each, chosen[item.tier, each]))
        if phases:
            result.append(item if phases == item.phases else item._replace(phases=phases))
    return result


@cache
def _is_at(moments: tuple[str, ...], phase: Phase, moment: str) -> bool:
    """Is an item with these moments there at this one? One that names no moment of a phase is there all the time."""
    named = [name for name in moments if name in MOMENTS.get(phase, ())]
    return not named or moment in named
