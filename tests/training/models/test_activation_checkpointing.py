# SPDX-License-Identifier: Apache-2.0
"""Inputs of layers under DeepSpeed's `checkpoint`, which empties them on the device while copies wait in host memory."""

from __future__ import annotations

from typing import Any

import deepspeed
import pytest
import torch
from deepspeed.runtime.activation_checkpointing.checkpointing import is_activation_to_checkpoint

from harness.runtime.models.activation_checkpointing import _offload_and_recompute


def _layer(hidden: torch.Tensor, mask: torch.Tensor | None, scale: float) -> torch.Tensor:
    product = hidden * hidden * scale
    return product if mask is None else product + mask


@pytest.fixture
def passed(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The inputs as DeepSpeed gets them."""
    seen: list[Any] = []

    def checkpoint(layer: Any, *inputs: Any) -> Any:
        seen.extend(inputs)
        return layer(*inputs)

    monkeypatch.setattr(deepspeed.checkpointing, "checkpoint", checkpoint)
    return seen


def test_a_view_is_passed_as_a_tensor_of_its_own(passed: list[Any]) -> None:
    """As for a module with a full backward hook: a view would keep its base on the device."""
    base = torch.randn(4, 8, requires_grad=True) * 1
    view = base.view_as(base)
    _offload_and_recompute(_layer, view, None, 2.0).sum().backward()
    assert view._is_view()
    assert not passed[0]._is_view()
    assert passed[0].data_ptr() == base.data_ptr()


def test_other_inputs_are_passed_as_they_are(passed: list[Any]) -> None:
    """A frozen embedding's output is a leaf, which autograd holds: DeepSpeed has to empty that tensor itself."""
    hidden = torch.randn(4, 8, requires_grad=True)
    _offload_and_recompute(_layer, hidden, None, 2.0)
    assert passed[0] is hidden
    assert passed[1:] == [None, 2.0]


def test_a_mask_that_layers_share_is_not_emptied(passed: list[Any]) -> None:
    hidden, mask = torch.randn(4, 8, requires_grad=True), torch.zeros(8)
    assert is_activation_to_checkpoint(mask)
    _offload_and_recompute(_layer, hidden, mask, 2.0)
    assert is_activation_to_checkpoint(passed[0])
    assert not is_activation_to_checkpoint(passed[1])


def test_gradients_pass_a_view(passed: list[Any]) -> None:
    hidden = torch.randn(4, 8, requires_grad=True)
    (expected,) = torch.autograd.grad(_layer(hidden * 1, None, 3.0).sum(), hidden)
    made = hidden * 1
    _offload_and_recompute(_layer, made.view_as(made), None, 3.0).sum().backward()
    assert passed[0].requires_grad
    assert hidden.grad is not None
    assert torch.equal(hidden.grad, expected)
