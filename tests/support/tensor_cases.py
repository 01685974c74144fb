# SPDX-License-Identifier: Apache-2.0
"""Models of every family under AutoTP, with the gates that speak of them.

The gates are asked in tests/gates/test_autotp_gates.py, live engines in tests/training/plan/test_tensor_shards.py.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from harness.check.check_file import check_file
from harness.facts.model_lookup import ModelFacts, facts_from_config
from harness.plan.weights.tensor_shard import TensorPlanChoice, TensorShard, shard_model

_SMALL = {"hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 6, "vocab_size": 128}
KV = {**_SMALL, "num_key_value_heads": 2, "intermediate_size": 80, "head_dim": 8}
_UNEVEN = {
    "hidden_size": 60,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 3,
    "head_dim": 4,
    "intermediate_size": 81,
    "vocab_size": 129,
}
EXPERTS = {**KV, "num_local_experts": 4, "num_experts_per_tok": 2}
_QWEN_EXPERTS = {**KV, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
_LATENT = {
    **_SMALL,
    "kv_lora_rank": 20,
    "q_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 12,
    "v_head_dim": 10,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 24,
    "first_k_dense_replace": 1,
    "intermediate_size": 80,
    "n_group": 1,
    "topk_group": 1,
}
_FALCON = {**_SMALL, "multi_query": False, "parallel_attn": False, "bias": True}
_TIED = {"tie_word_embeddings": True}
UNTIED = {"tie_word_embeddings": False}
_NORM_SUMS = {
    "use_default_specs": False,
    "layer_specs": [
        {"patterns": [r".*\.self_attn\.o_proj\.weight$"], "partition_type": "row"},
        {"patterns": [r".*\.self_attn\.[qkv]_proj\.weight$"], "partition_type": "column"},
        {"patterns": [r".*\.self_attn\.[qk]_norm\.weight$"], "partition_type": "skip", "grad_allreduce": True},
    ],
}
_LIGER = {"vocab_parallel_ce_backend": "liger"}


class Case(NamedTuple):
    """A model of a family, AutoTP's plan and ZeRO's stage; the gates that name what goes wrong; "" where it is right."""

    family: str
    fields: dict[str, Any]
    gates: str = ""
    plan: Mapping[str, Any] = MappingProxyType({})
    stage: int = 0

    @property
    def config(self) -> dict[str, Any]:
        return {"model_type": self.family, **self.fields}

    @property
    def facts(self) -> ModelFacts:
        facts = facts_from_config(self.config).facts
        assert facts is not None
        return facts

    @property
    def shard(self) -> TensorShard:
        return shard_model(self.facts, 2, choice_of(self.plan))

    @property
    def name(self) -> str:
        choices = [str(value) for value in self.plan.values() if not isinstance(value, dict)]
        return "-".join((self.family, *choices, *(["plan"] if "partition_config" in self.plan else [])))


def choice_of(plan: Mapping[str, Any]) -> TensorPlanChoice:
    return TensorPlanChoice(
        plan.get("preset_model", ""), plan.get("partition_config"), plan.get("vocab_parallel_lm_head")
    )


_LLAMAS = ("llama", "mistral", "qwen2", "qwen3", "gemma", "gemma2", "gemma3_text", "phi")
CASES = [
    *(Case(family, {**KV, **tie}) for family in _LLAMAS for tie in (_TIED, UNTIED)),
    *(Case(family, {**_UNEVEN, **tie}, "TP004") for family in ("llama", "qwen2", "qwen3") for tie in (_TIED, UNTIED)),
    Case("llama", {**KV, "attention_bias": True, "mlp_bias": True}),
    Case("llama", {**KV, "num_key_value_heads": 1}, "TP005"),
    *(Case("gpt_neox", {**_SMALL, "intermediate_size": 80, **tie}) for tie in (_TIED, UNTIED)),
    Case("gpt_neox", {**_SMALL, "num_attention_heads": 3, "intermediate_size": 81}, "TP004"),
    Case("gpt_neox", {**_SMALL, "intermediate_size": 80}, plan={"preset_model": "bloom"}),
    *(Case("falcon", {**_FALCON, **tie}) for tie in (_TIED, UNTIED)),
    Case("falcon", {**_FALCON, "alibi": True}, "TP024"),
    Case("falcon", {**_FALCON, "parallel_attn": True}),
    Case("falcon", {**_FALCON, "parallel_attn": True, "bias": False}, "TP024"),
    Case("falcon", {**_SMALL, "multi_query": True}, "TP005 TP024"),
    Case("falcon", {**_SMALL, "new_decoder_architecture": True, "num_kv_heads": 2}, "TP024"),
    Case("falcon", {**_SMALL, "new_decoder_architecture": True, "num_kv_heads": 2, "bias": True}),
    Case("falcon", _FALCON, plan={"vocab_parallel_lm_head": True}),
    Case("falcon", _FALCON, plan={"preset_model": "bloom"}),
    *(Case("phi3", {**KV, "pad_token_id": None, **tie}, "TP007") for tie in (_TIED, UNTIED)),
    Case("gpt2", {"n_embd": 48, "n_layer": 2, "n_head": 6, "vocab_size": 128, "n_positions": 77}, "TP006"),
    *(Case("gpt_oss", {**EXPERTS, **tie}, "TP022") for tie in (_TIED, UNTIED)),
    Case("gpt_oss", {**EXPERTS, "vocab_size": 129}, "TP022"),
    Case("gpt_oss", EXPERTS, "TP009 TP023", {"preset_model": "llama"}),
    *(Case("mixtral", {**EXPERTS, **tie}, "TP007") for tie in (_TIED, UNTIED)),
    *(Case("mixtral", {**EXPERTS, **tie}, "TP023", {"preset_model": "mixtral"}) for tie in (_TIED, UNTIED)),
    Case("mixtral", {**EXPERTS, "num_key_value_heads": 3}, "TP004 TP023", {"preset_model": "mixtral"}),
    Case("qwen2_moe", _QWEN_EXPERTS, "TP007"),
    Case("qwen2_moe", _QWEN_EXPERTS, "TP023", {"preset_model": "qwen2"}),
    Case("qwen3_moe", _QWEN_EXPERTS, "TP007"),
    Case("qwen3_moe", _QWEN_EXPERTS, "TP010 TP023", {"preset_model": "qwen2"}),
    Case("qwen3_moe", _QWEN_EXPERTS, "TP023", {"partition_config": _NORM_SUMS}),
    Case("qwen3", {**KV, **UNTIED}, "TP010", {"preset_model": "llama"}),
    Case("deepseek_v2", _LATENT, "TP007"),
    Case("deepseek_v3", _LATENT, "TP007"),
    Case("deepseek_v2", _LATENT, "TP025", {"preset_model": "deepseek_v2"}),
    Case("deepseek_v3", {**_LATENT, "n_shared_experts": 2}, "TP025", {"preset_model": "deepseek_v2"}),
    Case("deepseek_v2", {**_LATENT, "q_lora_rank": None}, "TP025", {"preset_model": "deepseek_v2"}),
    *(
        Case(family, {**KV, **tie}, gates, {"vocab_parallel_lm_head": head})
        for family in ("llama", "gemma", "gemma2")
        for tie in (_TIED, UNTIED)
        for head in (True, False)
        for gates in ["TP026" if family != "llama" and head and tie is _TIED else ""]
    ),
    *(
        Case("llama", {**KV, **tie}, "", {"preset_model": "llama", **head})
        for tie in (_TIED, UNTIED)
        for head in ({}, {"vocab_parallel_lm_head": True})
    ),
    Case("gemma", {**KV, **_TIED}, "TP017", _LIGER),
    Case("gemma3_text", {**KV, **_TIED}, "", _LIGER),
    Case("llama", {**KV, **_TIED}, "TP017", {"preset_model": "llama", **_LIGER}),
    Case("llama", {**KV, **UNTIED}, "TP017", _LIGER),
    *(Case("llama", {**_UNEVEN, **tie}, "TP004", stage=stage) for tie in (_TIED, UNTIED) for stage in (1, 2, 3)),
    *(Case("gpt_oss", EXPERTS, "TP022", stage=stage) for stage in (1, 2, 3)),
    *(Case("qwen2", {**KV, **_TIED}, stage=stage) for stage in (1, 2, 3)),
    Case("mixtral", EXPERTS, "TP023", {"preset_model": "mixtral"}, 1),
]


def tensor_gates(case: Case) -> set[str]:
    """The gates of tensor parallelism that fire for a case over two ranks."""
    spec = {
        "model": {"config": case.config},
        "data": {"train": "builtin:python-docs"},
        "train": {"max_steps": 1, "per_device_train_batch_size": 1},
        "parallel": {"tensor_parallel_size": 2},
        "zero": {"stage": case.stage},
        "deepspeed": {"tensor_parallel": dict(case.plan)} if case.plan else {},
    }
    findings = check_file("spec.yaml", text=json.dumps(spec), world_size=2).report.findings
    return {finding.gate for finding in findings if finding.gate.startswith("TP")}
