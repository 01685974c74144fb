# SPDX-License-Identifier: Apache-2.0
"""The planner's trainable parameters against `peft` and the harness's own freezing, on the meta device; seconds."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest
import torch
import transformers

from harness.check.machine_findings import check_adapter_targets
from harness.errors import UserError
from harness.facts.model_lookup import facts_from_config
from harness.plan.weights.trainable_split import (
    DEFAULT_TARGETS,
    TrainableChoice,
    has_known_targets,
    split_parameters,
)
from harness.run.resolved_run import resolve_run
from harness.runtime.models.lora import add_adapters
from harness.runtime.models.trainable_parameters import freeze_parameters
from harness.spec.run_spec import RunSpec
from harness.spec.sections.model_spec import ModelSpec

constants = pytest.importorskip("peft.utils.constants")
_SMALL = {"hidden_size": 48, "num_hidden_layers": 3, "num_attention_heads": 6, "vocab_size": 101}
_KV = {"num_key_value_heads": 2, "intermediate_size": 80, "head_dim": 12}
_ALL: dict[str, Any] = {"r": 4, "target_modules": "all-linear"}
_ATTENTION = {"target_modules": ["q_proj", "k_proj", "v_proj", "o_proj"]}
_GPT2 = {"n_embd": 48, "n_layer": 2, "n_head": 4, "vocab_size": 211, "n_positions": 33}
_LATENT = {"kv_lora_rank": 8, "q_lora_rank": 8, "qk_rope_head_dim": 4, "qk_nope_head_dim": 8, "v_head_dim": 8}
_DEEPSEEK = {"n_routed_experts": 4, "moe_intermediate_size": 24, "first_k_dense_replace": 1, "n_group": 1, **_LATENT}
CASES: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("llama", {**_SMALL, **_KV}, {"lora": {"r": 3}}),
    ("llama", {**_SMALL, **_KV}, {"lora": _ALL}),
    ("llama", {**_SMALL, **_KV}, {"lora": {**_ALL, "exclude_modules": ["gate_proj"], "rank_pattern": {"q_proj": 2}}}),
    ("llama", {**_SMALL, **_KV}, {"lora": {"target_modules": r".*\.1\.mlp\.(up|down)_proj"}}),
    ("llama", {**_SMALL, **_KV}, {"lora": {"target_modules": ["q_proj"], "layers_to_transform": [0, 2]}}),
    ("llama", {**_SMALL, **_KV}, {"lora": {"target_modules": ["embed_tokens", "o_proj"], "modules_to_save": ["norm"]}}),
    ("llama", {**_SMALL, **_KV}, {"lora": {"modules_to_save": ["lm_head"]}, "freeze": ["*.layers.0.*lora_A*"]}),
    ("llama", {**_SMALL, **_KV, "attention_bias": True}, {"lora": {"bias": "lora_only"}}),
    ("qwen2", {**_SMALL, **_KV, "tie_word_embeddings": True}, {"lora": {**_ALL, "bias": "all"}}),
    ("qwen2", {**_SMALL, **_KV, "tie_word_embeddings": True}, {"train_only": ["lm_head*", "*norm*"]}),
    ("gemma2", {**_SMALL, **_KV}, {"freeze": ["model.embed_tokens.*", "model.layers.1.*"]}),
    ("phi3", {**_SMALL, "intermediate_size": 80, "pad_token_id": None}, {"lora": _ALL}),
    ("gpt2", _GPT2, {"lora": {}}),
    ("gpt2", _GPT2, {"lora": _ALL}),
    ("opt", {**_SMALL, "ffn_dim": 96, "word_embed_proj_dim": 48}, {"lora": {"r": 3}}),
    ("mixtral", {**_SMALL, **_KV, "num_local_experts": 4}, {"lora": {"r": 3}}),
    ("mixtral", {**_SMALL, **_KV, "num_local_experts": 4}, {"lora": _ATTENTION}),
    ("qwen2_moe", {**_SMALL, **_KV, "num_experts": 4, "moe_intermediate_size": 24}, {"lora": _ATTENTION}),
    ("mixtral", {**_SMALL, **_KV, "num_local_experts": 4}, {"lora": _ALL}),
    ("gpt_oss", {**_SMALL, **_KV, "num_local_experts": 4}, {"lora": _ALL}),
    ("qwen2_moe", {**_SMALL, **_KV, "num_experts": 4, "moe_intermediate_size": 24}, {"lora": _ALL}),
    ("deepseek_v3", {**_SMALL, **_KV, **_DEEPSEEK}, {"lora": _ALL}),
]


@pytest.mark.parametrize(("family", "config", "model"), CASES)
def test_the_same_parameters_are_trained_as_in_real_modules(
    family: str, config: dict[str, Any], model: dict[str, Any]
) -> None:
    spec = ModelSpec.model_validate({"name_or_path": "x", **model}, strict=False)
    facts = facts_from_config({"model_type": family, **config}).facts
    assert facts is not None
    with torch.device("meta"):
        built = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.for_model(family, **config))
        if spec.lora is not None:
            add_adapters(built, spec.lora, seed=1)
    if spec.freeze or spec.train_only:
        freeze_parameters(built, spec)
    split = split_parameters(facts, TrainableChoice.from_spec(spec))
    trained = {name: p.numel() for name, p in built.named_parameters() if p.requires_grad}
    assert trained
    assert {p.name: p.numel for p in split.trainable} == trained
    assert split.num_parameters == sum(p.numel() for p in built.parameters())


@pytest.mark.parametrize(
    ("family", "config", "targets", "severity"),
    [
        ("qwen2", {**_SMALL, **_KV}, ["c_attn"], "error"),
        ("qwen2", {**_SMALL, **_KV}, ["q_proj", "c_attn"], "error"),
        ("qwen2", {**_SMALL, **_KV}, ["q_proj", "input_layernorm"], "error"),
        ("qwen2", {**_SMALL, **_KV}, ["q_proj", "self_attn"], "error"),
        ("qwen2", {**_SMALL, **_KV, "tie_word_embeddings": True}, ["lm_head"], None),
        ("gpt2", _GPT2, ["c_attn", "wte"], None),
        ("gpt2", _GPT2, ["q_proj"], "error"),
        ("phi3", {**_SMALL, "intermediate_size": 80, "pad_token_id": None}, r"model\..*\.q_proj", "error"),
    ],
)
def test_ranks_refuse_the_targets_that_are_errors(
    family: str, config: dict[str, Any], targets: list[str] | str, severity: str | None
) -> None:
    data = {"config": {"model_type": family, **config}, "lora": {"target_modules": targets}}
    spec = ModelSpec.model_validate(data, strict=False)
    assert [f.severity for f in check_adapter_targets(resolve_run(RunSpec(model=spec)))] == (
        [severity] if severity else []
    )
    with torch.device("meta"):
        built = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.for_model(family, **config))
    assert spec.lora is not None
    with pytest.raises(UserError) if severity == "error" else nullcontext():
        add_adapters(built, spec.lora, seed=1)


def test_default_targets_are_those_of_peft() -> None:
    known = constants.TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING
    for family, targets in DEFAULT_TARGETS.items():
        assert tuple(known[family]) == targets, family


@pytest.mark.parametrize("family", ["olmo2", "gpt_oss"])
def test_adapters_with_unknown_targets_are_not_planned_as_full_training(family: str) -> None:
    experts = {"num_local_experts": 4} if family == "gpt_oss" else {}
    facts = facts_from_config({"model_type": family, **_SMALL, **_KV, **experts}).facts
    assert facts is not None
    lora = ModelSpec.model_validate({"name_or_path": "x", "lora": {"r": 3}}, strict=False).lora
    assert lora is not None
    assert not has_known_targets(facts, lora)
    split = split_parameters(facts, TrainableChoice(lora))
    assert split.trainable
    assert all(".lora_" in each.name for each in split.trainable)
