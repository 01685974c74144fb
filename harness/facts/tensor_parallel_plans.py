# SPDX-License-Identifier: Apache-2.0
"""Tensor-parallel plans by family and by preset, in the form of DeepSpeed's layer specs. Data; judges nothing.

AutoTP takes the first of: `partition_config`, `preset_model`, the plan that `transformers` ships with the model,
guesses from the names of layers. tests/training/plan/test_tensor_shards.py counts every family here on the engine.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

LayerSpec = Mapping[str, Any]
"""`patterns` for names of weights from their beginning, `partition_type`, and what else DeepSpeed reads."""
LayerSpecs = tuple[LayerSpec, ...]

_ATTENTION = dict.fromkeys((f"layers.*.self_attn.{part}_proj" for part in "qkv"), "colwise") | {
    "layers.*.self_attn.o_proj": "rowwise"
}
_HEAD_NORMS = dict.fromkeys(
    ("layers.*.self_attn.q_norm", "layers.*.self_attn.k_norm"), "replicated_with_grad_allreduce"
)
_MLP = {
    "layers.*.mlp.gate_proj": "colwise",
    "layers.*.mlp.up_proj": "colwise",
    "layers.*.mlp.down_proj": "rowwise",
}
_EXPERTS = {
    "layers.*.mlp.experts.gate_up_proj": "packed_colwise",
    "layers.*.mlp.experts.down_proj": "rowwise",
    "layers.*.mlp.experts": "moe_tp_experts",
}
_SHARED = {key.replace(".mlp.", ".mlp.shared_experts."): style for key, style in _MLP.items()}
_HEAD = {"lm_head": "colwise_gather_output"}
_LLAMA = _ATTENTION | _MLP | _HEAD

TRANSFORMERS_PLANS: Final[Mapping[str, Mapping[str, str]]] = {
    **dict.fromkeys(("llama", "mistral", "qwen2", "gemma", "gemma2"), _LLAMA),
    "qwen3": _LLAMA | _HEAD_NORMS,
    "gemma3_text": _LLAMA | _HEAD_NORMS,
    "gemma3": {f"language_model.{key}": style for key, style in (_ATTENTION | _HEAD_NORMS | _MLP).items()} | _HEAD,
    "phi": {
        **{f"layers.*.self_attn.{part}_proj": "colwise" for part in "qkv"},
        "layers.*.self_attn.dense": "rowwise",
        "layers.*.mlp.fc1": "colwise",
        "layers.*.mlp.fc2": "rowwise",
        **_HEAD,
    },
    "phi3": {
        "layers.*.self_attn.qkv_proj": "colwise_gather_output",
        "layers.*.self_attn.o_proj": "rowwise_split_input",
        "layers.*.mlp.gate_up_proj": "colwise_gather_output",
        "layers.*.mlp.down_proj": "rowwise_split_input",
        **_HEAD,
    },
    "gpt_neox": {
        "layers.*.attention.query_key_value": "colwise",
        "layers.*.attention.dense": "rowwise",
        "layers.*.mlp.dense_h_to_4h": "colwise",
        "layers.*.mlp.dense_4h_to_h": "rowwise",
        **_HEAD,
    },
    "mixtral": _ATTENTION | _EXPERTS | _HEAD,
    "qwen2_moe": _ATTENTION | _EXPERTS | _MLP | _HEAD,
    "qwen3_moe": _ATTENTION | _HEAD_NORMS | _EXPERTS | _MLP | _HEAD,
    "gpt_oss": _HEAD,
    "deepseek_v2": {
        "layers.*.self_attn.q_proj": "colwise",
        "layers.*.self_attn.q_b_proj": "colwise",
        "layers.*.self_attn.kv_a_proj_with_mqa": "mla_kv_a_proj",
        "layers.*.self_attn.kv_b_proj": "colwise",
        "layers.*.self_attn.o_proj": "rowwise",
        **_EXPERTS,
        **_SHARED,
        **_MLP,
        **_HEAD,
    },
    "deepseek_v3": _EXPERTS | _SHARED | _MLP | _HEAD,
}
"""The plan of `transformers` 5.24 by family; the embeddings, which all of them name, are left out."""

KNOWN_STYLES: Final = frozenset(
    {
        "colwise",
        "colwise_rep",
        "colwise_gather_output",
        "rowwise",
        "replicated_with_grad_allreduce",
        "embedding_rowwise",
    }
)
"""Styles that DeepSpeed converts (`module_inject/tp_plan_converter.py`); one other style, and it raises ValueError."""

UNSUPPORTED_FAMILIES: Final = frozenset("deberta flaubert fsmt gpt2 led longformer xlm xlnet".split())
"""`module_inject/auto_tp.py` asserts that the model is none of these."""

SCALED_EMBEDDINGS: Final = frozenset({"gemma", "gemma2"})
"""Families whose embedding has a forward of its own that DeepSpeed does not shard: a head tied to it stays whole."""


def _spec(partition_type: str, *patterns: str, **more: Any) -> LayerSpec:
    return {"patterns": [rf".*\.{pattern}\.weight$" for pattern in patterns], "partition_type": partition_type, **more}


_LLAMA_ATTENTION = (_spec("row", r"self_attn\.o_proj"), _spec("column", r"self_attn\.[qkv]_proj"))
_LLAMA_PRESET = (
    *_LLAMA_ATTENTION,
    _spec("row", r"mlp\.down_proj"),
    _spec("column", r"mlp\.(up|gate)_proj"),
)
_FUSED_PRESET = (
    _spec("row", r"self_attention\.dense"),
    _spec("column", r"self_attention\.query_key_value"),
    _spec("row", r"mlp\.dense_4h_to_h"),
    _spec("column", r"mlp\.dense_h_to_4h"),
)

PRESET_SPECS: Final[Mapping[str, LayerSpecs]] = {
    "llama": _LLAMA_PRESET,
    "qwen2": _LLAMA_PRESET,
    "mixtral": (
        *_LLAMA_ATTENTION,
        _spec("row", r"block_sparse_moe\.experts\.\d+\.w2"),
        _spec("column", r"block_sparse_moe\.experts\.\d+\.w[13]"),
        _spec("skip", r"block_sparse_moe\.gate"),
    ),
    "deepseek_v2": (
        _spec("row", r"self_attn\.o_proj"),
        _spec("skip", r"self_attn\.(q_a_proj|kv_a_proj_with_mqa)"),
        _spec("column", r"self_attn\.(q_b_proj|kv_b_proj)"),
        _spec("row", r"mlp\.experts\.\d+\.down_proj"),
        _spec("column", r"mlp\.experts\.\d+\.(up|gate)_proj"),
        _spec("skip", r"mlp\.gate"),
        _spec("row", r"mlp\.shared_experts\.down_proj"),
        _spec("column", r"mlp\.shared_experts\.(up|gate)_proj"),
    ),
    "bloom": _FUSED_PRESET,
    "chatglm": (
        _spec("row", r"self_attention\.dense"),
        _spec("column", r"self_attention\.query_key_value", shape=[3, -1], partition_dim=0),
        _spec("row", r"mlp\.dense_4h_to_h"),
        _spec("column", r"mlp\.dense_h_to_4h", shape=[2, -1], partition_dim=0),
    ),
    "phi3": (
        _spec("row", r"self_attn\.o_proj"),
        _spec("column", r"self_attn\.qkv_proj", shape=[3, -1], partition_dim=0),
        _spec("row", r"mlp\.down_proj"),
        _spec("column", r"mlp\.gate_up_proj", shape=[2, -1], partition_dim=0),
    ),
}
"""`preset_model` by name (`module_inject/autotp_config.py` `AutoTPPresets`)."""

GUESSED_SPECS: Final[Mapping[str, LayerSpecs]] = {"falcon": _FUSED_PRESET}
"""DeepSpeed's guess from the names of layers, of the families here without a plan."""
