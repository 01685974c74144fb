# SPDX-License-Identifier: Apache-2.0
"""Wrapped methods of one instance."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from harness.engine_witness.gradient_witness import MethodWrapper


def count_into(calls: list[str], name: str) -> Any:
    def around(method: Any, args: Any, kwargs: Any) -> Any:
        calls.append(name)
        return method(*args, **kwargs)

    return around


def make_optimizer() -> torch.optim.SGD:
    weight = torch.nn.Parameter(torch.ones(2))
    weight.grad = torch.ones(2)
    return torch.optim.SGD([weight], lr=0.1)


def test_a_scheduler_may_wrap_the_step_before_and_after() -> None:
    optimizer, calls = make_optimizer(), list[str]()
    torch.optim.lr_scheduler.StepLR(optimizer, 1)
    before = vars(optimizer)["step"]
    wrapper = MethodWrapper(optimizer, "step", count_into(calls, "a"))
    torch.optim.lr_scheduler.StepLR(optimizer, 1)
    optimizer.step()
    assert calls == ["a"]
    wrapper.remove()
    optimizer.step()
    assert calls == ["a"]
    assert vars(optimizer).get("step") is not None
    assert before is not vars(optimizer)["step"], "the later scheduler's stays"
    assert optimizer.param_groups[0]["params"][0].tolist() == pytest.approx([0.8, 0.8])


def test_the_instance_is_as_it_was() -> None:
    optimizer, calls = make_optimizer(), list[str]()
    wrapper = MethodWrapper(optimizer, "step", count_into(calls, "a"))
    outer = MethodWrapper(optimizer, "step", count_into(calls, "b"))
    optimizer.step()
    assert calls == ["b", "a"]
    outer.remove()
    wrapper.remove()
    assert "step" not in vars(optimizer)


def test_a_method_that_the_class_gets_later_is_called(monkeypatch: pytest.MonkeyPatch) -> None:
    optimizer, calls = make_optimizer(), list[str]()
    MethodWrapper(optimizer, "step", count_into(calls, "a"))
    monkeypatch.setattr(torch.optim.SGD, "step", lambda _: calls.append("new"))
    optimizer.step()
    assert calls == ["a", "new"]
