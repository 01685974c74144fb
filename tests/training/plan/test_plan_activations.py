# SPDX-License-Identifier: Apache-2.0
"""Saved activations against hooks on real `transformers` modules on the CPU. Needs torch and transformers; seconds."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import product
from typing import Any

import pytest
import torch
import transformers
from torch.utils._pytree import tree_iter

from harness.facts.model_lookup import facts_from_config
from harness.plan.memory.activation_bytes import (
    MicroBatchShape,
    checkpointed_input_bytes,
    head_bytes,
    kept_attention_bytes,
    layer_bytes,
)
from harness.plan.memory.activation_items import activation_items
from harness.plan.settings.plan_settings import settings_of
from harness.plan.weights.trainable_split import TrainableChoice
from harness.plan.weights.trained_weights import frozen_head_bytes, model_training
from harness.run.resolved_run import resolve_run
from harness.runtime.models import kept_attention
from harness.runtime.models.activation_checkpointing import enable_activation_checkpointing
from harness.runtime.models.lora import add_adapters
from harness.runtime.models.tiled_mlp import tile_mlps
from harness.runtime.models.trainable_parameters import freeze_parameters
from harness.spec.run_spec import RunSpec
from harness.spec.sections.model_spec import ModelSpec
from harness.spec.sections.training_spec import CheckpointingSpec, TrainSpec

_SMALL = {"hidden_size": 64, "num_attention_heads": 4, "vocab_size": 199}
_KV = {**_SMALL, "num_key_value_heads": 2, "intermediate_size": 96, "head_dim": 16}
_LATENT = {
    **_SMALL,
    "num_key_value_heads": 4,
    "intermediate_size": 96,
    "q_lora_rank": 24,
    "kv_lora_rank": 16,
    "v_head_dim": 24,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 24,
    "n_shared_experts": 1,
    "first_k_dense_replace": 0,
}
"""Values as wide as the heads: torch has a fused kernel for others on CUDA alone."""
CASES: list[tuple[str, dict[str, Any]]] = [
    ("llama", _KV),
    ("mistral", _KV),
    ("qwen2", {k: v for k, v in _KV.items() if k != "head_dim"}),
    ("qwen3", _KV),
    ("gemma2", _KV),
    ("gemma3_text", _KV),
    ("phi3", {**{k: v for k, v in _KV.items() if k != "head_dim"}, "pad_token_id": None}),
    ("mixtral", {**_KV, "num_local_experts": 4}),
    ("gemma", _KV),
    ("phi", {k: v for k, v in _KV.items() if k != "head_dim"}),
    ("falcon", {**_SMALL, "new_decoder_architecture": True, "num_kv_heads": 2}),
    ("gpt_oss", {**_KV, "num_local_experts": 4, "num_experts_per_tok": 2}),
    (
        "qwen2_moe",
        {
            **{k: v for k, v in _KV.items() if k != "head_dim"},
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 24,
            "shared_expert_intermediate_size": 40,
        },
    ),
    ("qwen3_moe", {**_KV, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24}),
    ("deepseek_v2", {**_LATENT, "topk_method": "greedy"}),
    ("deepseek_v3", {**_LATENT, "n_group": 1, "topk_group": 1}),
    ("gpt2", {**_SMALL, "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}),
    ("gpt_neox", {**_SMALL, "intermediate_size": 96}),
]
_TO_THE_BYTE = ("llama", "mistral", "qwen2", "qwen3", "phi", "phi3", "gpt2", "gpt_neox")
_DTYPES = {2: torch.bfloat16, 4: torch.float32}


def saved(
    kind: str,
    fields: dict[str, Any],
    layers: int,
    e: int,
    attention: str,
    checkpointing: CheckpointingSpec | None = None,
    spec: ModelSpec | None = None,
    num_tiles: int = 1,
) -> int:
    """Bytes of unique storages that forward saves, parameters and buffers left out; 2 sequences of 32 tokens. `spec`:
    what is trained of the model.
    """
    kept: list[deque[Any]] = []
    count = "n_layer" if kind == "gpt2" else "num_hidden_layers"
    config = transformers.AutoConfig.for_model(kind, **fields, **{count: layers}, use_cache=False)
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation=attention).to(_DTYPES[e]).train()
    if spec is not None and spec.lora is not None:
        add_adapters(model, spec.lora, seed=1)
    if spec is not None and (spec.freeze or spec.train_only):
        freeze_parameters(model, spec)
    if num_tiles > 1:
        tile_mlps(model, num_tiles)
    if checkpointing:
        enable_activation_checkpointing(model, checkpointing, TrainSpec(), {})
    own = {t.untyped_storage().data_ptr() for t in (*model.parameters(), *model.buffers())}
    seen: dict[int, Any] = {}

    def pack(tensor: Any) -> Any:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            seen[storage.data_ptr()] = storage
        return tensor

    tokens = torch.randint(0, 100, (2, 32))
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t), keeping_in(kept):
        loss = model(input_ids=tokens, labels=tokens).loss
    for tensor in tree_iter([list(outputs) for outputs in kept]):
        if isinstance(tensor, torch.Tensor):
            pack(tensor)
    total = sum(storage.nbytes() for storage in seen.values())
    del loss
    return total


@contextmanager
def keeping_in(kept: list[deque[Any]]) -> Iterator[None]:
    """Collect what `{keep: attention}` keeps of each layer, which no hook sees."""
    plain = kept_attention.KeepAttention.__init__

    def init(self: Any, outputs: deque[Any]) -> None:
        kept.append(outputs)
        plain(self, outputs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kept_attention.KeepAttention, "__init__", init)
        yield


def facts(kind: str, fields: dict[str, Any]) -> Any:
    found = facts_from_config({"model_type": kind, **fields})
    assert found.facts is not None
    return found.facts


@pytest.mark.parametrize("e", [2, 4])
@pytest.mark.parametrize(("kind", "fields"), CASES, ids=[kind for kind, _ in CASES])
def test_a_layer_saves_what_the_formula_says(kind: str, fields: dict[str, Any], e: int) -> None:
    attention = "eager" if kind in ("gemma2", "gpt_oss") else "sdpa"
    counted = saved(kind, fields, 3, e, attention) - saved(kind, fields, 2, e, attention)
    expected = layer_bytes(facts(kind, fields), MicroBatchShape(64, 32, e, attention))
    assert counted == pytest.approx(expected, rel=0 if kind in _TO_THE_BYTE else 0.02 if "deepseek" in kind else 0.01)


@pytest.mark.parametrize("e", [2, 4])
@pytest.mark.parametrize("change", [{"q_lora_rank": None}, {"first_k_dense_replace": 9}])
def test_latent_attention(change: dict[str, Any], e: int) -> None:
    """Without low-rank queries, and in a layer without experts, where it is exact."""
    fields = {**dict(CASES)["deepseek_v3"], **change}
    counted = saved("deepseek_v3", fields, 3, e, "sdpa") - saved("deepseek_v3", fields, 2, e, "sdpa")
    model = facts("deepseek_v3", fields)
    expected = layer_bytes(model, MicroBatchShape(64, 32, e), model.layers[0])
    assert counted == pytest.approx(expected, rel=0.02 if "q_lora_rank" in change else 0)


def test_eager_attention_of_llama_keeps_the_softmax() -> None:
    counted = saved("llama", _KV, 3, 2, "eager") - saved("llama", _KV, 2, 2, "eager")
    assert counted == layer_bytes(facts("llama", _KV), MicroBatchShape(64, 32, 2, "eager"))


@pytest.mark.parametrize("e", [2, 4])
def test_the_head_of_llama(e: int) -> None:
    """Everything but the layers: the head and once per model cos and sin (2 x sequence x head dimension)."""
    two, three = saved("llama", _KV, 2, e, "sdpa"), saved("llama", _KV, 3, e, "sdpa")
    rest = two - 2 * (three - two) - 2 * 32 * 16 * e
    assert rest == pytest.approx(head_bytes(facts("llama", _KV), MicroBatchShape(64, 32, e)), abs=64 * 8 + 16)


def test_checkpointing_keeps_the_input_of_a_layer() -> None:
    all_layers = CheckpointingSpec()
    counted = saved("llama", _KV, 3, 2, "sdpa", all_layers) - saved("llama", _KV, 2, 2, "sdpa", all_layers)
    assert counted == checkpointed_input_bytes(facts("llama", _KV), MicroBatchShape(64, 32, 2))


@pytest.mark.parametrize("e", [2, 4])
@pytest.mark.parametrize(("kind", "fields"), [case for case in CASES if case[0] not in ("gemma2", "gpt_oss")])
def test_kept_attention_is_an_output_and_a_logsumexp(kind: str, fields: dict[str, Any], e: int) -> None:
    keep = CheckpointingSpec(keep="attention")
    counted = saved(kind, fields, 3, e, "sdpa", keep) - saved(kind, fields, 2, e, "sdpa", keep)
    model, shape = facts(kind, fields), MicroBatchShape(64, 32, e)
    assert counted == checkpointed_input_bytes(model, shape) + kept_attention_bytes(model, shape)


@pytest.mark.parametrize("e", [2, 4])
@pytest.mark.parametrize("kind", ["llama", "mistral", "qwen2", "qwen3", "phi3", "gemma", "gemma2", "gemma3_text"])
def test_an_mlp_in_tiles_saves_its_input_alone(kind: str, e: int) -> None:
    fields, attention = dict(CASES)[kind], "eager" if kind == "gemma2" else "sdpa"
    counted = saved(kind, fields, 3, e, attention, num_tiles=3) - saved(kind, fields, 2, e, attention, num_tiles=3)
    expected = layer_bytes(facts(kind, fields), MicroBatchShape(64, 32, e, attention, mlp_tile=24))
    assert counted == pytest.approx(expected, rel=0 if kind in _TO_THE_BYTE else 0.01)


@pytest.mark.parametrize("keep", [None, "attention"])
def test_every_second_layer_keeps_its_activations(keep: Any) -> None:
    """Layers 2 and 3 of four: the input of one, and all of the other."""
    layers = CheckpointingSpec(recompute_every=2, keep=keep)
    counted = saved("llama", _KV, 4, 2, "sdpa", layers) - saved("llama", _KV, 2, 2, "sdpa", layers)
    model, shape = facts("llama", _KV), MicroBatchShape(64, 32, 2)
    kept = kept_attention_bytes(model, shape) if keep else 0
    assert counted == layer_bytes(model, shape) + checkpointed_input_bytes(model, shape) + kept


@pytest.mark.parametrize(
    "value",
    [
        True,
        {"recompute_every": 2},
        {"recompute_every": 3},
        {"keep": "attention"},
        {"recompute_every": 4, "keep": "attention"},
    ],
)
def test_the_plan_counts_what_a_model_saves(value: Any) -> None:
    """All rows of activations that stay from the forward to the backward pass, of a whole model of five layers. The
    plan is that of one row, which has no mask; neither have the two of the model, which are not padded.
    """
    fields = {**_KV, "num_hidden_layers": 5}
    run = {
        "model": {"config": {"model_type": "llama", **fields}},
        "data": {"train": "x", "max_length": 64},
        "train": {"per_device_train_batch_size": 1, "gradient_checkpointing": value, "loss_chunk_size": 0},
        "precision": {"bf16": True},
    }
    resolved = resolve_run(RunSpec.model_validate(run, strict=False), world_size=1)
    settings = settings_of(resolved)
    assert settings is not None
    planned = sum(i.bytes for i in activation_items(facts("llama", fields), settings) if i.kind == "activations")
    layers = resolved.checkpointing
    rest = saved("llama", _KV, 2, 2, "sdpa") - 2 * layer_bytes(facts("llama", _KV), MicroBatchShape(64, 32, 2))
    # Where no layer is plain, cosine and sine wait with the functions that recompute, where no hook sees them.
    rotary = 2 * 32 * 16 * 2 if layers is not None and layers.recompute_every == 1 else 0
    assert planned == saved("llama", _KV, 5, 2, "sdpa", layers) - (rest - rotary)


TRAINED: dict[str, dict[str, Any]] = {
    "LoRA": {"lora": {"r": 4, "target_modules": ["q_proj", "v_proj"]}},
    "LoRA of another rank in the MLP": {
        "lora": {"r": 2, "target_modules": ["q_proj", "o_proj", "down_proj"], "rank_pattern": {"down_proj": 8}}
    },
    "LoRA with dropout": {"lora": {"r": 4, "target_modules": ["k_proj", "v_proj"], "lora_dropout": 0.1}},
    "LoRA and trained norms": {"lora": {"r": 4, "target_modules": ["q_proj"], "modules_to_save": ["norm"]}},
    "LoRA everywhere": {"lora": {"r": 4, "target_modules": "all-linear"}},
    "frozen norms": {"freeze": ["*norm*"]},
    "frozen MLP": {"freeze": ["*mlp*"]},
    "attention alone": {"train_only": ["*self_attn*"]},
    "the embedding alone": {"train_only": ["*embed_tokens*"]},
}
_LAYERS = ("llama", "mistral", "qwen2", "qwen3", "gemma", "gemma2", "gemma3_text", "phi3", "mixtral", "qwen2_moe")
_FUSED = {"phi3": ("qkv_proj", "o_proj", "down_proj")}
_EXPERTS = ("mixtral", "qwen2_moe")
OTHERS: list[tuple[str, dict[str, Any]]] = [
    ("phi", {"lora": {"r": 4}}),
    ("phi", {"freeze": ["*mlp*"]}),
    ("falcon", {"lora": {"r": 4}}),
    ("falcon", {"lora": {"r": 4, "target_modules": "all-linear"}}),
    ("falcon", {"train_only": ["*self_attention*"]}),
    ("gpt2", {"lora": {"r": 4}}),
    ("gpt2", {"lora": {"r": 4, "target_modules": "all-linear"}}),
    ("gpt2", {"freeze": ["*mlp*"]}),
    ("gpt_neox", {"lora": {"r": 4}}),
    ("gpt_neox", {"freeze": ["*dense*"]}),
    ("gpt_oss", {"freeze": ["*mlp*"]}),
    ("gpt_oss", {"train_only": ["*self_attn*"]}),
]


def cases_of_training() -> list[tuple[str, dict[str, Any]]]:
    """What `peft` refuses or adapts in ways of its own is left out."""
    drawn = []
    for kind, (name, model) in product(_LAYERS, TRAINED.items()):
        targets = model.get("lora", {}).get("target_modules")
        if kind in _FUSED and isinstance(targets, list) and not set(targets) <= set(_FUSED[kind]):
            continue
        if kind in _EXPERTS and (targets == "all-linear" or name == "LoRA of another rank in the MLP"):
            continue
        drawn.append((kind, model))
    return [*drawn, *OTHERS]


@pytest.mark.parametrize("e", [2, 4])
@pytest.mark.parametrize(("kind", "model"), cases_of_training())
def test_a_layer_saves_what_its_trained_weights_need(kind: str, model: dict[str, Any], e: int) -> None:
    """The mask of dropout is as wide as the activation on a CPU, and a byte on CUDA, which is planned."""
    fields, spec = dict(CASES)[kind], ModelSpec.model_validate({"name_or_path": "x", **model}, strict=False)
    attention = "eager" if kind in ("gemma2", "gpt_oss") else "sdpa"
    counted = saved(kind, fields, 3, e, attention, spec=spec) - saved(kind, fields, 2, e, attention, spec=spec)
    known = facts(kind, fields)
    training = model_training(known, TrainableChoice.from_spec(spec))
    assert training is not None
    layer = training.layers[-1]
    masks = sum(width for _, _, width in layer.adapters) if layer.dropout else 0
    expected = layer_bytes(known, MicroBatchShape(64, 32, e, attention), known.layers[-1], layer) + 64 * (e - 1) * masks
    assert counted < saved(kind, fields, 3, e, attention) - saved(kind, fields, 2, e, attention) or layer.adapters
    assert counted == pytest.approx(expected, rel=0 if kind in _TO_THE_BYTE else 0.01)


@pytest.mark.parametrize("e", [2, 4])
@pytest.mark.parametrize("kind", ["llama", "qwen3", "gemma2"])
def test_a_frozen_norm_in_tiles_saves_its_input_as_a_trained_one(kind: str, e: int) -> None:
    fields, spec = (
        dict(CASES)[kind],
        ModelSpec.model_validate({"name_or_path": "x", **TRAINED["frozen norms"]}, strict=False),
    )
    attention = "eager" if kind == "gemma2" else "sdpa"
    three, two = (saved(kind, fields, count, e, attention, spec=spec, num_tiles=3) for count in (3, 2))
    training = model_training(facts(kind, fields), TrainableChoice.from_spec(spec))
    assert training is not None
    shape, known = MicroBatchShape(64, 32, e, attention, mlp_tile=24), facts(kind, fields)
    assert three - two == pytest.approx(layer_bytes(known, shape, known.layers[-1], training.layers[-1]), rel=0.01)


def test_layers_before_the_first_trained_weight_save_nothing() -> None:
    spec = ModelSpec.model_validate({"name_or_path": "x", "train_only": ["model.layers.2.*"]}, strict=False)
    training = model_training(facts("llama", {**_KV, "num_hidden_layers": 4}), TrainableChoice.from_spec(spec))
    assert training is not None
    assert [layer.saves for layer in training.layers] == [False, False, True, True]
    four, three = saved("llama", _KV, 4, 2, "sdpa", spec=spec), saved("llama", _KV, 3, 2, "sdpa", spec=spec)
    assert four - three == layer_bytes(facts("llama", _KV), MicroBatchShape(64, 32, 2), None, training.layers[3])
    two = ModelSpec.model_validate({"name_or_path": "x", "train_only": ["model.layers.3.*"]}, strict=False)
    later = saved("llama", _KV, 4, 2, "sdpa", spec=two)
    own = layer_bytes(facts("llama", _KV), MicroBatchShape(64, 32, 2), None, training.layers[2])
    assert three == later
    assert own < four - later + own


@pytest.mark.parametrize("e", [2, 4])
def test_a_frozen_head_saves_no_input(e: int) -> None:
    spec = ModelSpec.model_validate({"name_or_path": "x", "freeze": ["lm_head*", "model.norm*"]}, strict=False)
    training = model_training(facts("llama", _KV), TrainableChoice.from_spec(spec))
    assert training is not None
    less = saved("llama", _KV, 2, e, "sdpa") - saved("llama", _KV, 2, e, "sdpa", spec=spec)
    assert less == 64 * frozen_head_bytes(facts("llama", _KV), training, e)
