# SPDX-License-Identifier: Apache-2.0
"""`{keep: attention}` and `{recompute_every: K}` in one process: the same gradients, and what is computed once and twice."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import AutoConfig, AutoModelForCausalLM

from harness.errors import UserError
from harness.runtime.models.activation_checkpointing import enable_activation_checkpointing
from harness.runtime.models.kept_attention import is_attention_kernel
from harness.spec.sections.training_spec import CheckpointingSpec, TrainSpec

LLAMA = {"vocab_size": 300, "hidden_size": 32, "num_attention_heads": 2, "num_key_value_heads": 1}
LAYERS = 4


class CallCounter(TorchDispatchMode):
    """Counts the kernels of attention and the products of matrices."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if is_attention_kernel(func.name()):
            self.calls["attention"] += 1
        elif func.name() in ("aten::mm", "aten::addmm"):
            self.calls["products"] += 1
        return func(*args, **(kwargs or {}))


def train(
    layers: CheckpointingSpec | None, dtype: torch.dtype = torch.float32, **fields: Any
) -> tuple[Any, Counter[str]]:
    """(loss and gradients, calls) of a forward and a backward pass."""
    torch.manual_seed(0)
    config = AutoConfig.for_model("llama", num_hidden_layers=LAYERS, intermediate_size=48, **{**LLAMA, **fields})
    model = AutoModelForCausalLM.from_config(config).to(dtype).train()
    if layers is not None:
        enable_activation_checkpointing(model, layers, TrainSpec(), {})
    ids = torch.randint(0, 300, (2, 16), generator=torch.Generator().manual_seed(1))
    with CallCounter() as counter:
        loss = model(input_ids=ids, labels=ids, use_cache=False).loss
        loss.backward()
    return [loss.detach(), *(p.grad for p in model.parameters())], counter.calls


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("layers", "attention"),
    [
        (CheckpointingSpec(), 2 * LAYERS),
        (CheckpointingSpec(keep="attention"), LAYERS),
        (CheckpointingSpec(recompute_every=2), LAYERS + LAYERS // 2),
        (CheckpointingSpec(recompute_every=3), LAYERS + 2),
        (CheckpointingSpec(recompute_every=3, keep="attention"), LAYERS),
    ],
    ids=str,
)
def test_gradients_are_equal_and_attention_runs_as_often(layers: CheckpointingSpec, attention: int, dtype: Any) -> None:
    (expected, plain), (found, calls) = train(None, dtype), train(layers, dtype)
    assert all(torch.equal(a, b) for a, b in zip(expected, found, strict=True))
    assert (plain["attention"], calls["attention"]) == (LAYERS, attention)
    # torch stops before the last product of a layer, that of the MLP: six of seven run again
    assert calls["products"] - plain["products"] == 6 * -(-LAYERS // layers.recompute_every)


def test_attention_with_dropout_is_refused() -> None:
    with pytest.raises(UserError) as refused:
        train(CheckpointingSpec(keep="attention"), attention_dropout=0.1)
    assert refused.value.findings[0].gate == "MD160"


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("aten::_scaled_dot_product_flash_attention", True),
        ("aten::_scaled_dot_product_flash_attention_backward", False),
        ("flash_attn::_flash_attn_varlen_forward", True),
        ("flash_attn::_flash_attn_backward", False),
        ("flash_attn_3::fwd", True),
        ("flash_attn_3::bwd", False),
        ("aten::mm", False),
    ],
)
def test_kernels_are_known_by_name(name: str, expected: bool) -> None:
    assert is_attention_kernel(name) == expected
