# SPDX-License-Identifier: Apache-2.0
"""Every schedule of the spec against its closed form, step by step."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch

from harness.errors import UserError
from harness.run.schedule_steps import decay_steps, warmup_steps
from harness.runtime.lr_schedule import check_schedule, scheduler_factory
from harness.spec.run_spec import SchedulerSpec

PEAK, STEPS, WARMUP = 3e-4, 50, 5


def rates(spec: SchedulerSpec, steps: int = STEPS, groups: tuple[float, ...] = (PEAK,)) -> list[float]:
    """The rate that each step is taken with; one list of the first group's."""
    optimizer = torch.optim.SGD([{"params": [torch.zeros(1, requires_grad=True)], "lr": lr} for lr in groups], lr=1.0)
    scheduler = scheduler_factory(spec, steps)(optimizer)
    out = []
    for _ in range(steps):
        out.append(scheduler.get_last_lr()[0])
        optimizer.step()
        scheduler.step()
    return out


def after_warmup(form: Callable[[float], float]) -> Callable[[int], float]:
    """The rate at a step: a line from 0, then `form` of the share of the steps after the warm-up."""

    def rate(step: int) -> float:
        return PEAK * (step / WARMUP if step < WARMUP else form((step - WARMUP) / (STEPS - WARMUP)))

    return rate


def half_cosine(share: float) -> float:
    return 0.5 * (1 + math.cos(math.pi * share))


def stable_then(fall: Callable[[float], float], low: float = 0.0) -> Callable[[int], float]:
    """10 steps of fall at the end; the warm-up starts at `low`."""

    def rate(step: int) -> float:
        if WARMUP <= step < STEPS - 10:
            return PEAK
        factor = step / WARMUP if step < WARMUP else fall((step - (STEPS - 10)) / 10)
        return PEAK * (low + (1 - low) * factor)

    return rate


CASES: dict[str, tuple[dict[str, object], Callable[[int], float]]] = {
    "constant": ({"type": "constant"}, after_warmup(lambda _: 1.0)),
    "linear": ({"type": "linear"}, after_warmup(lambda x: 1 - x)),
    "cosine": ({"type": "cosine"}, after_warmup(half_cosine)),
    "cosine-to-a-tenth": ({"type": "cosine", "min_lr_ratio": 0.1}, after_warmup(lambda x: 0.1 + 0.9 * half_cosine(x))),
    "restarts": (
        {"type": "cosine_with_restarts", "num_cycles": 3},
        after_warmup(lambda x: half_cosine((3 * x) % 1.0)),
    ),
    "polynomial": (
        {"type": "polynomial", "power": 2.0, "min_lr_ratio": 0.1},
        after_warmup(lambda x: 0.1 + 0.9 * (1 - x) ** 2),
    ),
    "inverse-sqrt": (
        {"type": "inverse_sqrt"},
        lambda s: PEAK * (s / WARMUP if s < WARMUP else math.sqrt(WARMUP / s)),
    ),
    "wsd": ({"type": "warmup_stable_decay", "decay_steps": 10}, stable_then(lambda x: 1 - x)),
    "wsd-cosine": (
        {"type": "warmup_stable_decay", "decay_ratio": 0.2, "decay_type": "cosine", "min_lr_ratio": 0.2},
        stable_then(half_cosine, 0.2),
    ),
    "wsd-1-sqrt": (
        {"type": "warmup_stable_decay", "decay_steps": 10, "decay_type": "1-sqrt"},
        stable_then(lambda x: 1 - math.sqrt(x)),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_the_rate_of_every_step(name: str) -> None:
    fields, form = CASES[name]
    found = rates(SchedulerSpec.model_validate({**fields, "warmup_steps": WARMUP}))
    assert found == pytest.approx([form(step) for step in range(STEPS)], rel=1e-12, abs=1e-20)


def test_a_constant_rate_without_a_warm_up() -> None:
    assert rates(SchedulerSpec(type="constant")) == [PEAK] * STEPS


def test_warm_up_and_decay_as_shares_are_rounded_up() -> None:
    spec = SchedulerSpec(type="warmup_stable_decay", warmup_ratio=0.05, decay_ratio=0.11)
    assert (warmup_steps(spec, 50), decay_steps(spec, 50)) == (3, 6)
    assert warmup_steps(SchedulerSpec(warmup_steps=7, warmup_ratio=0.5), 50) == 7


def test_groups_keep_their_own_peaks() -> None:
    """Muon's two rates: the scheduler multiplies each."""
    optimizer = torch.optim.SGD([{"params": [torch.zeros(1, requires_grad=True)], "lr": lr} for lr in (1.0, 0.5)], lr=9)
    scheduler = scheduler_factory(SchedulerSpec(type="linear"), 4)(optimizer)
    optimizer.step()
    scheduler.step()
    assert scheduler.get_last_lr() == [0.75, 0.375]


def test_a_decay_that_does_not_fit_is_refused() -> None:
    spec = SchedulerSpec(type="warmup_stable_decay", warmup_steps=20, decay_steps=40)
    with pytest.raises(UserError, match="a warm-up of 20 steps and a decay of 40 do not fit into 50 steps") as refused:
        check_schedule(spec, 50)
    assert refused.value.findings[0].gate == "OP110"
    check_schedule(spec, 60)
