# SPDX-License-Identifier: Apache-2.0
"""FLOPs and tokens of a step against torch's own counter and against counting by hand. One process, tiny models: about 6 s."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoConfig, AutoModelForCausalLM, LlamaConfig

from harness.plan.weights.flops import GradientShares
from harness.run.resolved_run import resolve_run
from harness.runtime.dataset.token_dataset import BlockDataset, DocumentDataset, TokenDataset
from harness.runtime.telemetry.flops_counter import FlopsCounter, make_flops_counter
from harness.spec.run_spec import RunSpec

LENGTH, ROWS = 64, 3
LLAMA = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 160,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 320,
    "max_position_embeddings": 256,
}
GPT2 = {"model_type": "gpt2", "vocab_size": 320, "n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 128}
QWEN = {**LLAMA, "model_type": "qwen2", "tie_word_embeddings": True}
UNKNOWN = {**LLAMA, "model_type": "olmo3", "num_key_value_heads": 4}


def make(fields: dict[str, Any], attention: str) -> tuple[Any, Any]:
    rest = {k: v for k, v in fields.items() if k != "model_type"}
    config = AutoConfig.for_model(fields["model_type"], use_cache=False, attn_implementation=attention, **rest)
    return config, AutoModelForCausalLM.from_config(config, attn_implementation=attention).train()


def stream(length: int = LENGTH, count: int = 10) -> TokenDataset:
    return TokenDataset((BlockDataset(np.arange(length * count, dtype=np.uint16) % 320, length),), length)


def documents(lengths: list[list[int]], full: int, *, packed: bool) -> TokenDataset:
    """Rows of documents of these lengths."""
    docs = np.concatenate([[0], np.cumsum([n for row in lengths for n in row])])
    rows = np.concatenate([[0], np.cumsum([len(row) for row in lengths])])
    counts = np.array([sum(n - 1 for n in row) for row in lengths])
    return TokenDataset((DocumentDataset(np.zeros(docs[-1], dtype=np.uint16), None, docs, rows, counts, packed),), full)


def work(config: Any, model: Any, sequences: TokenDataset, **train: Any) -> FlopsCounter:
    return make_flops_counter(resolve_run(RunSpec.model_validate({"train": train})), config, model, sequences)


def counted(model: Any, rows: int = ROWS, length: int = LENGTH) -> float:
    """The FLOPs of a forward and a backward, by torch's counter."""
    ids = torch.randint(0, 320, (rows, length))
    with FlopCounterMode(display=False) as counter:
        model(input_ids=ids, labels=ids).loss.backward()
    return float(counter.get_total_flops())


@pytest.mark.parametrize("fields", [LLAMA, QWEN, GPT2, UNKNOWN], ids=lambda f: f["model_type"])
def test_executed_flops_are_those_that_torch_counts(fields: dict[str, Any]) -> None:
    config, model = make(fields, "eager")
    counts = work(config, model, stream()).count(np.arange(ROWS).reshape(1, 1, ROWS))
    assert counts.hardware_flops == pytest.approx(counted(model), rel=0.005)
    assert (counts.tokens, counts.positions) == (ROWS * LENGTH, ROWS * LENGTH)


def test_recomputation_counts_as_executed() -> None:
    config, model = make(LLAMA, "eager")
    model.gradient_checkpointing_enable({"use_reentrant": False})
    counts = work(config, model, stream(), gradient_checkpointing=True).count(np.arange(ROWS).reshape(1, 1, ROWS))
    assert counts.hardware_flops == pytest.approx(counted(model), rel=0.01)
    assert counts.model_flops < counts.hardware_flops / 1.2


@pytest.mark.parametrize("pattern", ["model.layers.0", "model.layers.1", "lm_head", "model.layers"])
def test_frozen_matrices_cost_less(pattern: str) -> None:
    """A layer before the first trained one is not gone through; one behind it is, without a gradient of its own."""
    config, model = make(LLAMA, "eager")
    first = pattern == "model.layers.0"
    for name, parameter in model.named_parameters():
        if name.startswith(pattern) or (first and "embed" in name):
            parameter.requires_grad_(False)
    counts = work(config, model, stream()).count(np.arange(ROWS).reshape(1, 1, ROWS))
    assert counts.hardware_flops == pytest.approx(counted(model), rel=0.03)


def test_needed_flops_by_hand() -> None:
    """The formula, written out for one document: 6 a matrix element and token, 12 h d a pair and layer."""
    config, model = make(LLAMA, "sdpa")
    counts = work(config, model, stream()).count(np.array([[[0]]]))
    layer = 64 * 64 * 2 + 64 * 32 * 2 + 3 * 64 * 160
    matrices = 3 * layer + 64 * 320
    pairs = sum(position + 1 for position in range(LENGTH))
    assert counts.model_flops == 6 * matrices * LENGTH + 12 * 64 * 3 * pairs
    assert counts.hardware_flops == counts.model_flops  # no padding, no mask, nothing computed twice
    parameters = matrices + 64 * 320 + 3 * 2 * 64 + 64
    assert counts.flops_6n == 6 * parameters * LENGTH


def test_documents_of_a_packed_row_do_not_attend_to_each_other() -> None:
    config, model = make(LLAMA, "sdpa")
    alone = work(config, model, documents([[10], [30], [24]], LENGTH, packed=False))
    packed = work(config, model, documents([[10, 30, 24]], LENGTH, packed=True))
    one, three = packed.count(np.array([[[0]]])), [alone.count(np.array([[[i]]])) for i in range(3)]
    assert one.model_flops == sum(amount.model_flops for amount in three)
    assert one.hardware_flops > one.model_flops  # with a mask `sdpa` computes the whole square
    assert (one.tokens, one.positions) == (64, 64)


def test_padding_is_computed_but_not_counted_as_tokens() -> None:
    config, model = make(LLAMA, "eager")
    uneven = work(config, model, documents([[5], [40], [33], [20]], LENGTH, packed=False))
    counts = uneven.count(np.arange(4).reshape(1, 2, 2))
    assert counts.tokens == 5 + 40 + 33 + 20
    assert counts.positions == 2 * 40 + 2 * 33
    assert counts.hardware_flops == pytest.approx(counted(model, 2, 40) + counted(model, 2, 33), rel=0.005)


def test_a_window_limits_the_pairs() -> None:
    config, model = make({**LLAMA, "model_type": "mistral", "sliding_window": 8}, "sdpa")
    counter = work(config, model, stream())
    assert counter.layers_by_window == {8: 3}
    pairs = sum(min(position + 1, 8) for position in range(LENGTH))
    wide, _ = make({**LLAMA, "model_type": "mistral", "sliding_window": None}, "sdpa")
    free = work(wide, model, stream()).count(np.array([[[0]]]))
    near = counter.count(np.array([[[0]]]))
    assert free.model_flops - near.model_flops == 12 * 64 * 3 * (LENGTH * (LENGTH + 1) // 2 - pairs)


def test_nothing_frozen_is_all_trained() -> None:
    config, model = make(QWEN, "sdpa")
    assert work(config, model, stream()).trained_fractions == GradientShares(1.0, 1.0)


def test_a_model_with_experts_that_is_not_known_has_no_flops() -> None:
    class HomeMade(LlamaConfig):
        model_type = "home-made"

    model = make(LLAMA, "sdpa")[1]
    config = HomeMade(**{k: v for k, v in LLAMA.items() if k != "model_type"}, num_experts_of_mine=4)
    counter = work(config, model, stream())
    assert counter.sizes is None
    assert "home-made" in counter.source
    assert counter.count(np.array([[[0]]])).model_flops == 0


def test_a_configuration_with_heads_by_layer_has_no_flops() -> None:
    config = AutoConfig.for_model("dots3_note_text")
    with pytest.raises(RuntimeError, match="per-layer"):
        _ = config.num_attention_heads
    assert work(config, torch.nn.Linear(2, 2), stream()).sizes is None
