# SPDX-License-Identifier: Apache-2.0
"""States of an element by optimizer, of a spec and of a DeepSpeed JSON. Needs nothing."""

from __future__ import annotations

from typing import Any

import pytest

from harness.gates.optimizer_facts import OWN, TORCH
from harness.plan.weights.optimizer_states import Optimizer
from tests.support.plan_inputs import offload, plan_of


def states(name: str, *, stage: int = 2, is_offloaded: bool = False, **params: Any) -> int:
    optimizer = Optimizer.of({"type": name, "params": params}, "adamw", None)
    return optimizer.num_states(stage=stage, is_offloaded=is_offloaded)


@pytest.mark.parametrize(
    ("name", "params", "expected"),
    [
        ("AdamW", {}, 2),
        ("Adam", {"torch_adam": True}, 2),
        ("SGD", {}, 0),
        ("SGD", {"momentum": 0.9}, 1),
        ("MuSGD", {"momentum": 0.9}, 1),
        ("Lion", {}, 1),
        ("Adagrad", {}, 1),
        ("RMSprop", {}, 1),
        ("RMSprop", {"momentum": 0.9, "centered": True}, 3),
        ("Adafactor", {}, 1),
        ("Muon", {}, 2),
        ("Lamb", {}, 2),
        ("Adadelta", {}, 2),
        ("ASGD", {}, 1),
    ],
)
def test_states_of_a_json(name: str, params: dict[str, Any], expected: int) -> None:
    assert states(name, **params) == expected


def test_the_cpu_version_of_lion_has_a_second_state_and_a_matrix_of_adafactor_next_to_none() -> None:
    assert states("Lion", is_offloaded=True) == 2
    assert states("Adafactor", stage=0) == 0


def test_every_accepted_optimizer_has_a_number() -> None:
    assert all(0 <= states(name) <= 2 for name in (*OWN, *TORCH))


def test_the_json_decides_and_without_a_type_the_spec_does() -> None:
    assert Optimizer.of({"type": "Lion"}, "sgd", 0.9) == Optimizer("lion", {})
    for block in (None, {}, {"type": 3}, "adam"):
        assert Optimizer.of(block, "sgd", 0.9) == Optimizer("sgd", {"momentum": 0.9})


@pytest.mark.parametrize(
    ("stage", "is_offloaded", "mixed_precision", "expected"),
    [
        (0, False, True, True),
        (0, False, False, False),
        (1, False, True, True),
        (2, False, False, True),
        (2, True, True, False),
        (3, False, True, False),
    ],
)
def test_adagrad_leaves_its_first_states(stage: int, is_offloaded: bool, mixed_precision: bool, expected: bool) -> None:
    where = {"stage": stage, "is_offloaded": is_offloaded, "mixed_precision": mixed_precision}
    assert Optimizer("adagrad", {}).keeps_first_states(**where) is expected
    assert not Optimizer("adamw", {}).keeps_first_states(**where)


def test_a_json_with_lion_is_planned_with_one_state() -> None:
    def bytes_of_states(name: str, **zero: Any) -> int:
        raw = {"optimizer": {"type": name, "params": {"lr": 1e-5}}}
        memory = plan_of(deepspeed=raw, zero=zero or {"stage": 2}).memory
        assert memory is not None
        return sum(item.bytes for item in memory.items if item.kind == "states")

    assert 2 * bytes_of_states("Lion") == bytes_of_states("AdamW")
    assert bytes_of_states("Lion", **offload("cpu")) == bytes_of_states("AdamW", **offload("cpu"))
