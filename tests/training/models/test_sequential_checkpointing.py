# SPDX-License-Identifier: Apache-2.0
"""Checkpointing by segments in one process: the same gradients to the bit, fewer inputs kept, and when a segment ends."""

from __future__ import annotations

import weakref
from functools import partial
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from harness.runtime.models.activation_checkpointing import enable_activation_checkpointing
from harness.runtime.models.sequential_checkpointing import SegmentCheckpoint
from harness.spec.sections.training_spec import CheckpointingSpec, TrainSpec

SIZES = {"vocab_size": 100, "hidden_size": 32, "num_attention_heads": 2, "num_hidden_layers": 7}
MODELS: dict[str, dict[str, Any]] = {
    "llama": {"intermediate_size": 48},
    "gpt2": {"resid_pdrop": 0.2, "attn_pdrop": 0.2, "bos_token_id": 0, "eos_token_id": 0},
    "gemma3_text": {"head_dim": 16, "num_key_value_heads": 1, "intermediate_size": 48, "sliding_window": 5},
    "mixtral": {"intermediate_size": 48, "num_key_value_heads": 1, "num_local_experts": 2},
}


def gradients(model_type: str, layers_per_segment: int | None, *, autocast: bool = False) -> list[Any]:
    """The loss and all gradients of a micro-batch of random tokens."""
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(model_type, **SIZES, **MODELS[model_type])).train()
    if layers_per_segment:
        layers = CheckpointingSpec(layers_per_segment=layers_per_segment)
        enable_activation_checkpointing(model, layers, TrainSpec(), {})
    ids = torch.randint(0, 100, (2, 16))
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        loss = model(input_ids=ids, labels=ids, use_cache=False).loss
    loss.backward()
    return [loss.detach(), *(p.grad for p in model.parameters())]


@pytest.mark.parametrize("model_type", list(MODELS))
def test_gradients_are_equal_to_the_bit(model_type: str) -> None:
    expected = gradients(model_type, None)
    for layers in (2, 3, 7):
        found = gradients(model_type, layers)
        assert all(torch.equal(a, b) for a, b in zip(expected, found, strict=True) if a is not None), layers


def test_layers_run_again_in_the_number_format_of_autocast() -> None:
    expected, found = (gradients("llama", layers, autocast=True) for layers in (None, 3))
    assert all(torch.equal(a, b) for a, b in zip(expected, found, strict=True))


def double(x: torch.Tensor) -> torch.Tensor:
    return x * 2.0


def test_only_the_first_input_of_a_segment_stays() -> None:
    function = SegmentCheckpoint(3)
    hidden = torch.ones(4, requires_grad=True)
    inputs = []
    for _ in range(7):
        hidden = function(torch.sin, hidden)
        inputs.append(weakref.ref(hidden))
    alive = [number for number, each in enumerate(inputs, start=1) if each() is not None]
    assert alive == [3, 6, 7]  # the inputs of layers 3 and 6, and the result
    hidden.sum().backward()


@pytest.mark.parametrize("between", [lambda x: x + 1, lambda x: x.add_(1)], ids=["another tensor", "in place"])
def test_a_layer_with_another_input_begins_a_segment(between: Any) -> None:
    def run(call: Any) -> torch.Tensor:
        start = torch.linspace(0.1, 1, 4, requires_grad=True)
        hidden = call(double, start)
        hidden = call(torch.sin, between(call(double, hidden)))
        call(torch.cos, hidden).sum().backward()
        assert start.grad is not None
        return start.grad

    assert torch.equal(run(SegmentCheckpoint(4)), run(lambda function, x: function(x)))


def test_gradients_may_be_taken_twice() -> None:
    start = torch.linspace(0.1, 1, 4, requires_grad=True)
    function, hidden = SegmentCheckpoint(3), start
    for each in (torch.sin, partial(torch.mul, other=3.0), torch.cos):
        hidden = function(each, hidden)
    first = torch.autograd.grad(hidden.sum(), start, retain_graph=True)
    assert torch.equal(first[0], torch.autograd.grad(hidden.sum(), start)[0])
