# SPDX-License-Identifier: Apache-2.0
"""A backward pass leaves nothing of its graph behind. Plain torch; no ranks."""

from __future__ import annotations

import gc
import weakref
from types import SimpleNamespace
from typing import Any

import torch

from harness.engine_witness.backward_scale import BackwardScale


class Stash:
    """A thing that a layer keeps for its backward outside `save_for_backward`, such as its input under checkpointing."""


class Keep(torch.autograd.Function):
    """Doubles its input."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, stash: Stash) -> torch.Tensor:  # type: ignore[override]
        ctx.stash = stash
        return x * 2

    @staticmethod
    def backward(_ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:  # type: ignore[override]
        return gradient * 2, None


class Layer(torch.nn.Module):
    """Returns an output and its sum, as a model of transformers returns logits and loss."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(4))
        self.stashes: list[weakref.ref[Stash]] = []

    def forward(self) -> tuple[torch.Tensor, torch.Tensor]:
        """(4,) and a scalar."""
        stash = Stash()
        self.stashes.append(weakref.ref(stash))
        output = Keep.apply(self.weight, stash)
        return output, output.sum()


def test_graphs_are_freed_after_each_backward_pass() -> None:
    """Else a watched run holds the layers' inputs of all micro-batches, and keeps them after the step."""
    engine: Any = SimpleNamespace(gradient_accumulation_steps=lambda: 2)
    scale, layer = BackwardScale(engine), Layer()
    scale.arm(layer)
    for _ in range(2):
        output, loss = layer()
        scale.start(loss, {})
        loss.backward()  # type: ignore[no-untyped-call]
        scale.end()
        del output, loss
    gc.collect()
    assert [stash() for stash in layer.stashes] == [None, None]
    assert len(scale.passes) == 2
    scale.disarm()
