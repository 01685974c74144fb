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


_FUSED = r"""row self_attention\.dense, column self_attention\.query_key_value, row mlp\.dense_4h_to_h,
    column mlp\.dense_h_to_4h"""
_LLAMA_ATTENTION = r"row self_attn\.o_proj, column self_attn\.[qkv]_proj"
_LLAMA = rf"{_LLAMA_ATTENTION}, row mlp\.down_proj, column mlp\.(up|gate)_proj"
_PRESETS = {
    "llama": _LLAMA,
    "qwen2": _LLAMA,
    "mixtral": rf"""{_LLAMA_ATTENTION}, row block_sparse_moe\.experts\.\d+\.w2,
        column block_sparse_moe\.experts\.\d+\.w[13], skip block_sparse_moe\.gate""",
    "deepseek_v2": r"""row self_attn\.o_proj, skip self_attn\.(q_a_proj|kv_a_proj_with_mqa),
        column self_attn\.(q_b_proj|kv_b_proj), row mlp\.experts\.\d+\.down_proj,
        column mlp\.experts\.\d+\.(up|gate)_proj, skip mlp\.gate, row mlp\.shared_experts\.down_proj,
        column mlp\.shared_experts\.(up|gate)_proj""",
    "bloom": _FUSED,
    "chatglm": r"""row self_attention\.dense, column self_attention\.query_key_value 3, row mlp\.dense_4h_to_h,
        column mlp\.dense_h_to_4h 2""",
    "phi3": r"row self_attn\.o_proj, column self_attn\.qkv_proj 3, row mlp\.down_proj, column mlp\.gate_up_proj 2",
}


def _read_specs(text: str) -> LayerSpecs:
    """The specs of a text: a type, a pattern of names, and of how many weights in a row each is one."""
    return tuple(
        {"patterns": [rf".*\.{pattern}\.weight$"], "partition_type": kind}
        | ({"shape": [int(parts[0]), -1], "partition_dim": 0} if parts else {})
        for kind, pattern, *parts in map(str.split, text.split(","))
    )


PRESET_SPECS: Final[Mapping[str, LayerSpecs]] = {name: _read_specs(text) for name, text in _PRESETS.items()}
"""`preset_model` by name (`module_inject/autotp_config.py` `AutoTPPresets`)."""

GUESSED_SPECS: Final[Mapping[str, LayerSpecs]] = {"falcon": _read_specs(_FUSED)}
"""DeepSpeed's guess from the names of layers, of the families here without a plan."""
