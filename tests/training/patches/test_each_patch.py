# SPDX-License-Identifier: Apache-2.0
"""Each patch in a small training, switched off in the spec and not: what it is against is there and gone, and the numbers
are the same to the bit, unless its scenario has a bound.
"""

from __future__ import annotations

from typing import Any

import pytest

from harness.patches.patch_registry import all_patches
from tests.support.training.patch_scenarios import SCENARIOS

SWITCHED = [patch for patch in all_patches() if patch.kind != "use"]
PATCHES = pytest.mark.parametrize("patch", SWITCHED, ids=lambda patch: patch.name)


def test_every_patch_has_a_scenario() -> None:
    assert {patch.name for patch in SWITCHED} <= set(SCENARIOS)


@PATCHES
def test_what_it_is_against_is_there_without_it_and_gone_with_it(patch: Any, measure: Any) -> None:
    off, on = measure(patch.name, off=True), measure(patch.name, off=False)
    assert all(fault > 0 for fault, *_ in off["measurements"])
    assert all(fault == 0 for fault, *_ in on["measurements"])


@PATCHES
def test_the_switch_of_the_spec_is_what_makes_the_difference(patch: Any, measure: Any) -> None:
    off, on = measure(patch.name, off=True)["states"], measure(patch.name, off=False)["states"]
    assert off == {**on, patch.name: "switched off"}
    assert on[patch.name] == "applied"


@pytest.mark.parametrize("patch", [p for p in SWITCHED if p.kind != "correctness"], ids=lambda patch: patch.name)
def test_the_numbers_are_the_same(patch: Any, measure: Any) -> None:
    off, on = measure(patch.name, off=True), measure(patch.name, off=False)
    results = [[result for _, result, _ in side["measurements"]] for side in (off, on)]
    bound = SCENARIOS[patch.name].bound
    assert results[1] == ([pytest.approx(result, rel=bound) for result in results[0]] if bound else results[0])
    assert all(results[0])


def test_pipelined_swapping_keeps_all_states_of_the_first_step(measure: Any) -> None:
    """Over four sub-groups, whether reads, writes or both are pipelined."""
    _, _, details = measure("nvme-release", off=True)["measurements"][0]
    assert details["kept"] == [details["states"]] * 3
