# SPDX-License-Identifier: Apache-2.0
"""Tensor-parallel plans by preset, in the form of DeepSpeed's layer specs. Data; judges nothing.

AutoTP takes the first of: `partition_config`, `preset_model`, the plan that `transformers` ships with the model (in
the table of models), guesses from the names of layers. tests/training/plan/test_tensor_shards.py counts them on the
engine.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

LayerSpec = Mapping[str, Any]
"""`patterns` for names of weights from their beginning, `partition_type`, and what else DeepSpeed reads."""
LayerSpecs = tuple[LayerSpec, ...]

KNOWN_STYLES: Final = frozenset(
    """colwise colwise_rep colwise_gather_output rowwise replicated_with_grad_allreduce embedding_rowwise""".split()
)
"""Styles that DeepSpeed converts (`module_inject/tp_plan_converter.py`); one other style, and it raises ValueError."""

UNSUPPORTED_FAMILIES: Final = frozenset(("deberta", "flaubert", "fsmt", "gpt2", "led", "longformer", "xlm", "xlnet"))
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
