# SPDX-License-Identifier: Apache-2.0
"""Of each phase the moment that holds most. Needs nothing; milliseconds."""

from __future__ import annotations

from harness.plan.memory.memory_items import (
    BACKWARD,
    MICRO_BATCH,
    MOMENTS,
    MemoryItem,
    Phase,
    Tier,
    at_moments,
    keep_largest_moments,
)


def item(name: str, size: int, *moments: str, phases: tuple[Phase, ...] = BACKWARD, tier: Tier = "gpu") -> MemoryItem:
    return at_moments(MemoryItem(tier, "x", name, size, "", "", phases), *moments)


def test_a_phase_has_the_items_of_its_largest_moment() -> None:
    items = [
        item("always", 10, phases=MICRO_BATCH),
        item("logits", 5, "loss", "loss gradient", phases=MICRO_BATCH),
        item("layer", 7, "backward layer"),
        item("copy", 1, "backward copy"),
    ]
    kept = {each.description: each.phases for each in keep_largest_moments(items)}
    assert kept == {"always": MICRO_BATCH, "logits": ("forward",), "layer": BACKWARD}


def test_each_tier_has_a_moment_of_its_own() -> None:
    items = [item("gpu", 5, "loss gradient"), item("host", 7, "backward layer", tier="host")]
    assert keep_largest_moments(items) == items


def test_what_is_assumed_does_not_choose() -> None:
    assumed = item("slack", 100, "backward layer")._replace(assumed=True)
    assert [each.description for each in keep_largest_moments([assumed, item("loss", 1, "loss gradient")])] == ["loss"]


def test_a_moment_belongs_to_one_phase() -> None:
    names = [name for moments in MOMENTS.values() for name in moments]
    assert len(set(names)) == len(names)
