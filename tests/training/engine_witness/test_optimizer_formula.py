# SPDX-License-Identifier: Apache-2.0
"""The formulas against torch's optimizers: the same steps within their bounds, and no wider than a wrong setting."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from harness.engine_witness.optimizer_formula import StepInputs, apply_formula, formula_of, inputs_of

OPTIMIZERS: dict[str, tuple[Any, dict[str, Any]]] = {
    "SGD": (torch.optim.SGD, {"lr": 0.1}),
    "SGD with momentum": (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "dampening": 0.1, "weight_decay": 0.01}),
    "Nesterov": (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "nesterov": True, "maximize": True}),
    "Adam": (torch.optim.Adam, {"lr": 1e-3, "weight_decay": 0.1}),
    "AdamW": (torch.optim.AdamW, {"lr": 1e-3, "weight_decay": 0.1, "betas": (0.8, 0.95), "eps": 1e-6}),
}
STATES = ("exp_avg", "exp_avg_sq", "momentum_buffer")


def step_once(name: str, steps: int = 3) -> tuple[StepInputs, torch.Tensor]:
    """(inputs of the last of some steps, weights after it)"""
    kind, settings = OPTIMIZERS[name]
    torch.manual_seed(0)
    weight = torch.nn.Parameter(torch.randn(256))
    optimizer = kind([weight], **settings)
    for number in range(steps):
        weight.grad = torch.randn(256) * 10.0 ** torch.randint(-6, 2, (256,))
        state = optimizer.state[weight]
        values = {key: state[key].double().clone() for key in STATES if torch.is_tensor(state.get(key))}
        values |= {"weights": weight.detach().double(), "gradient": weight.grad.double()}
        inputs = inputs_of(optimizer, optimizer.param_groups[0], number + 1, values)
        optimizer.step()
    assert inputs is not None
    return inputs, weight.detach().double()


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("steps", [1, 3])
def test_the_formula_is_torchs_within_its_bound(name: str, steps: int) -> None:
    inputs, weights = step_once(name, steps)
    outputs = apply_formula(inputs)
    assert bool(((outputs.weights - weights).abs() <= outputs.weight_error).all())
    move = (weights - inputs.weights).abs()
    assert float((outputs.weight_error / move.clamp_min(1e-4)).median()) < 0.01


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("Adam", {"weight_decay": 0.0}),
        ("AdamW", {"weight_decay": 0.0}),
        ("AdamW", {"step": 4}),
        ("AdamW", {"is_decoupled": False}),
        ("AdamW", {"beta2": 0.96}),
        ("SGD with momentum", {"momentum": 0.8}),
        ("SGD", {"learning_rate": 0.101}),
    ],
)
def test_another_setting_is_outside_the_bound(name: str, change: dict[str, Any]) -> None:
    inputs, weights = step_once(name)
    outputs = apply_formula(replace(inputs, **change))
    assert not bool(((outputs.weights - weights).abs() <= outputs.weight_error).all())


def test_unknown_optimizers_have_no_formula() -> None:
    weight = torch.nn.Parameter(torch.ones(2))
    assert formula_of(torch.optim.RMSprop([weight])) is None
    adam = torch.optim.Adam([weight], amsgrad=True)
    assert inputs_of(adam, adam.param_groups[0], 1, {"weights": weight, "gradient": weight}) is None
