# SPDX-License-Identifier: Apache-2.0
"""MLPs in tiles of tokens, in one process: the same loss and gradients, the width of one tile at once, no experts."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from harness.errors import UserError
from harness.plan.settings.checkpointed_layers import shares_of_layers
from harness.plan.weights.flops import FlopsInputs, executed_flops
from harness.runtime.models.activation_checkpointing import enable_activation_checkpointing
from harness.runtime.models.tiled_mlp import TiledForward, tile_mlps
from harness.spec.sections.training_spec import CheckpointingSpec, TrainSpec
from tests.support.training.allocations import peak_of

FIELDS = {
    "vocab_size": 64,
    "hidden_size": 32,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "num_hidden_layers": 2,
}
WIDTH = 512


def model_of(family: str, num_tiles: int, *, recomputed: bool = False, **fields: Any) -> Any:
    torch.manual_seed(0)
    fields = {**FIELDS, "intermediate_size": WIDTH, **fields}
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(family, **fields)).train()
    if num_tiles > 1:
        tile_mlps(model, num_tiles)
    if recomputed:
        enable_activation_checkpointing(model, CheckpointingSpec(), TrainSpec(), {})
    return model


def gradients(model: Any, rows: int = 2, length: int = 40) -> list[torch.Tensor]:
    ids = torch.randint(0, 64, (rows, length), generator=torch.Generator().manual_seed(1))
    loss = model(input_ids=ids, labels=ids, use_cache=False).loss
    loss.backward()
    return [loss.detach(), *(p.grad for p in model.parameters() if p.grad is not None)]


@pytest.mark.parametrize("recomputed", [False, True])
@pytest.mark.parametrize("num_tiles", [3, 100])
@pytest.mark.parametrize("family", ["llama", "gemma2", "phi3"])
def test_gradients_are_those_of_the_whole_mlp(family: str, num_tiles: int, recomputed: bool) -> None:
    """100 tiles of 80 tokens: some are empty, as on a rank with shorter rows than the others."""
    fields = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2} if family == "phi3" else {}
    expected = gradients(model_of(family, 1, **fields))
    found = gradients(model_of(family, num_tiles, recomputed=recomputed, **fields))
    assert all(torch.allclose(a, b, rtol=1e-4, atol=1e-6) for a, b in zip(expected, found, strict=True))


def test_a_frozen_mlp_in_tiles_passes_its_gradient_on() -> None:
    def frozen(num_tiles: int) -> Any:
        model = model_of("llama", num_tiles)
        for name, parameter in model.named_parameters():
            parameter.requires_grad_("mlp" not in name)
        return model

    assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(gradients(frozen(1)), gradients(frozen(4)), strict=True))


@pytest.mark.parametrize("recomputed", [False, True])
def test_the_peak_falls_by_the_width_of_the_mlp(recomputed: bool) -> None:
    """Wide MLPs: what they save is nearly all of the peak, and of it an eighth of one layer remains."""
    whole = peak_of(lambda: gradients(model_of("llama", 1, recomputed=recomputed), 1, 1024))
    tiled = peak_of(lambda: gradients(model_of("llama", 8, recomputed=recomputed), 1, 1024))
    saved = 4 * 4 * WIDTH * 1024 * (1 if recomputed else 2)
    assert whole - tiled > 0.8 * saved


def test_experts_are_refused() -> None:
    with pytest.raises(UserError) as refused:
        model_of("mixtral", 2, num_local_experts=2)
    assert refused.value.findings[0].gate == "MD161"


def test_no_gradient_no_checkpoint() -> None:
    calls = []
    forward = TiledForward(lambda tile: calls.append(tile.shape) or tile, 3)
    with torch.no_grad():
        assert forward(torch.ones(2, 5, 4)).shape == (2, 5, 4)
    assert calls == [(1, 4, 4), (1, 3, 4), (1, 3, 4)]


@pytest.mark.parametrize("recomputed", [False, True])
def test_the_operations_that_are_repeated_are_counted(recomputed: bool) -> None:
    """By torch's counter, which knows no attention on the CPU; what the last tile of a layer leaves out is small."""
    from torch.utils.flop_counter import FlopCounterMode

    from harness.facts.model_lookup import facts_from_config

    model = model_of("llama", 16, recomputed=recomputed)
    facts = facts_from_config(model.config.to_dict()).facts
    assert facts is not None
    shares = shares_of_layers(2, 1 if recomputed else None, keeps_attention=False, in_tiles=True)
    with FlopCounterMode(display=False) as counter:
        gradients(model, 1, 64)
    expected = executed_flops(FlopsInputs.from_model(facts), 64, 0, recomputed=shares)
    assert counter.get_total_flops() == pytest.approx(expected, rel=0.03)
