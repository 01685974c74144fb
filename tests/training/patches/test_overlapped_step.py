# SPDX-License-Identifier: Apache-2.0
"""Sub-groups stepped beside the backward pass: the bits of DeepSpeed's order after 32 steps, whatever was guessed."""

from __future__ import annotations

import json
from typing import Any
from unittest.mock import MagicMock

import pytest

from harness.facts.kept_copies import KEPT_BYTES, count_overlapped, kept_bytes
from harness.patches.overlapped_step import _record_event
from tests.support.training.forked_ranks import ForkedRanks
from tests.training.patches.test_one_pass_adam import ADAM, FP32_SUMS, JOB, STEPS, case

GIB = 0.5
OVERLAPPED = {"overlap_step_gib": GIB}
NEVER, SOMETIMES, ALWAYS = 0.0, 2.2, 0.01
"""Limits of the norm, of the small model's steps that they clip."""
RESCHEDULED = [9, 20, 21]
"""Steps whose learning rate changes after their backward pass."""


def overlapped(clip: float, accumulation: int = 1, place: dict[str, Any] | None = None, **others: Any) -> Any:
    return case(3, clip, accumulation, {**OVERLAPPED, **(place or {})}, sub_group_size=300, **others)


CASES = {
    "unclipped": overlapped(NEVER, settles=True),
    "clipped-sometimes": overlapped(SOMETIMES, settles=True),
    "clipped-always": overlapped(ALWAYS, settles=True),
    "racing": overlapped(SOMETIMES, nan_step=9),
    "accumulated": overlapped(NEVER, 3, nan_step=7, settles=True, optimizer=ADAM),
    "nan": overlapped(NEVER, settles=True, nan_step=7),
    "fp32-sums": overlapped(SOMETIMES, 2, deepspeed=FP32_SUMS, settles=True),
    "ratio": overlapped(NEVER, place={"ratio": 0.5}, settles=True),
    "parameters": overlapped(SOMETIMES, settles=True, is_param_on_cpu=True),
    "resumed": overlapped(NEVER, settles=True, resumed=[20], nan_step=11),
    "observed": overlapped(NEVER, settles=True, observed=[3, 4, 17]),
    "saved-in-the-middle": overlapped(NEVER, settles=True, saved=[5, 6, 30]),
    "scheduled": overlapped(SOMETIMES, 2, settles=True, is_scheduled=True, rescheduled=RESCHEDULED),
    "some-early": overlapped(SOMETIMES, settles=True, nan_step=7, place={"overlap_step_gib": KEPT_BYTES * 700 / 2**30}),
    "loss-scale": overlapped(NEVER, 2, settles=True, loss_scale=4096.0, nan_step=7),
    "fp32-loss-scale": overlapped(NEVER, 2, deepspeed=FP32_SUMS, settles=True, loss_scale=4096.0),
    "betas": overlapped(SOMETIMES, settles=True, betas=[0.8, 0.95]),
    "ratio-nan": overlapped(NEVER, place={"ratio": 0.5}, settles=True, nan_step=30, is_any_nan=True),
}
NOT_BEGUN = ("betas", "fp32-loss-scale")
CASES["parameters"]["spec"]["zero"]["offload_param"] = {"device": "cpu"}


@pytest.fixture(scope="module")
def sides(fresh: ForkedRanks, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What `one_pass_steps.py` writes."""
    folder = tmp_path_factory.mktemp("overlapped")
    fresh.run(JOB, json.dumps(CASES), str(STEPS), str(folder / "out.json"), str(folder / "runs"), ranks=2, timeout=500)
    return dict(json.loads((folder / "out.json").read_text()))


@pytest.mark.parametrize("name", CASES)
def test_weights_masters_and_states_are_those_of_the_plain_order(name: str, sides: dict[str, Any]) -> None:
    for plain, early in sides[name]:
        assert (plain["overlapped"], early["overlapped"]) == ("switched off", "applied")
        for key in ("losses", "norms", "weights", "states", "skipped", "saved"):
            assert plain[key] == early[key], key
        counts = early["early"]
        assert counts.get("begun", 0) == sum(counts.get(end, 0) for end in ("kept", "dropped", "cancelled"))


@pytest.mark.parametrize("name", sorted(CASES.keys() - {"racing", "clipped-always", *NOT_BEGUN}))
def test_sub_groups_are_stepped_before_the_backward_pass_ends(name: str, sides: dict[str, Any]) -> None:
    """Counted after each backward pass, before its step: without the patch nothing is stepped there."""
    for _, early in sides[name]:
        assert early["begun"][-1] >= STEPS // 4
        assert early["early"]["kept"] >= STEPS // 8


@pytest.mark.parametrize("name", NOT_BEGUN)
def test_nothing_is_begun_that_the_order_or_the_scale_would_change(name: str, sides: dict[str, Any]) -> None:
    """The op takes a power of beta where the sub-group before had another one, and else multiplies the last; DeepSpeed
    divides a gradient in fp32 by the loss scale in place.
    """
    assert not any(early["early"] for _, early in sides[name])


def test_a_wrong_guess_is_dropped(sides: dict[str, Any]) -> None:
    for name in ("clipped-sometimes", "nan"):
        assert all(early["early"]["dropped"] > 0 for _, early in sides[name])
    assert all(len(early["saved"]) == 3 for _, early in sides["saved-in-the-middle"])
    for _, early in sides["scheduled"]:
        assert all(early["begun"][step] > early["begun"][step - 1] for step in RESCHEDULED)


def test_steps_that_always_clip_are_not_guessed(sides: dict[str, Any]) -> None:
    """The states are made in the first step, which nothing precedes; two more are guessed."""
    for _, early in sides["clipped-always"]:
        assert set(early["early"]) == {"begun", "dropped"}
        assert early["begun"][2:] == [early["begun"][2]] * (STEPS - 2)


def test_torch_rounds_new_weights_that_it_pins() -> None:
    assert [kept_bytes(size, is_rounded=True) - 12 * size for size in (1, 4, 5, 8)] == [2, 8, 16, 16]
    assert count_overlapped((5, 5), 152 / 2**30) == 2
    assert count_overlapped((5, 5), 151 / 2**30, is_rounded=True) == 1


@pytest.mark.parametrize(("name", "options"), [("cuda", {"blocking": True}), ("xpu", {})])
def test_a_waiting_thread_does_not_spin(name: str, options: dict[str, bool], monkeypatch: pytest.MonkeyPatch) -> None:
    event, device = MagicMock(), MagicMock()
    device.device_name.return_value, device.Event = name, event
    device.is_synchronized_device.return_value = False
    monkeypatch.setattr("deepspeed.accelerator.get_accelerator", lambda: device)
    _record_event()
    event.assert_called_once_with(**options)


@pytest.mark.parametrize(("room", "expected"), [(0, 0), (29, 0), (30, 1), (49, 1), (50, 2), (59, 2), (60, 3), (900, 3)])
def test_the_budget_holds_the_last_sub_groups(room: int, expected: int) -> None:
    assert count_overlapped((10, 20, 30), KEPT_BYTES * room / 2**30) == expected
