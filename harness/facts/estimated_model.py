# SPDX-License-Identifier: Apache-2.0
"""The size of a model of any family, from the fields that most configurations have: a Llama-like model of that size.
Of a model without a configuration, from the size in its name.

An estimate: norms, biases and parts of a family's own are not known here.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from functools import partial
from typing import Any

from harness.facts.data_rows import read_rows
from harness.facts.model_catalogue import catalogue_config, is_misspelt, size_in_name
from harness.facts.model_families import Family, LayerKind, find_sparse, is_linear_layer
from harness.facts.model_parts import BadConfig, ConfigFields

_NAMES = {row.partition(":")[0]: row.split()[1:] for _, row in read_rows("field_names.txt")}
"""Other names of each field, in the order in which they count."""
_REQUIRED = ("hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size")
_TEXT_KEYS = ("text_config", "language_config", "llm_config")
_GATED = ("silu", "swi", "glu")
_SQUARED_PLAIN_WIDTH = 3
"""Hidden sizes: with `relu2` BitNet has a gate and a width of 2.7, the others (Arcee, Jais, NanoChat, Nemotron,
Persimmon) have none and at least three; by the classes of transformers 5.24.
"""
_OTHER_LAYERS = tuple(
    """hybrid_override_pattern mamba_n_heads ssm_state_size state_size conv_L_cache
    hidden_size_per_layer_input zero_expert_num block_configs""".split()
)
"""Fields of layers that are neither attention nor an MLP nor experts: an estimate would be far off."""
_FIRST, _EVERY = "first_k_dense_replace", "decoder_sparse_step"
_LATENT = {"q_lora_rank": None, "qk_rope_head_dim": 64, "v_head_dim": 128, "qk_nope_head_dim": 128}


def estimate_fields(config: Mapping[str, Any]) -> tuple[Family, ConfigFields]:
    """A family that builds the estimate, and the configuration under usual names. Raises BadConfig where a field is
    missing that no estimate can do without.
    """
    text: Mapping[str, Any] = next((config[key] for key in _TEXT_KEYS if isinstance(config.get(key), Mapping)), {})
    values = _rename({**config, **text})
    for name in _REQUIRED:
        if values.get(name) is None:
            raise BadConfig(f"`{name}` is missing")
    if values.get("is_moe") is False:
        values["num_local_experts"] = None
    other = next((name for name in _OTHER_LAYERS if values.get(name)), None)
    if other is not None:
        raise BadConfig(f"`{other}` stands for layers of a kind that is not estimated")
    defaults: dict[str, Any] = {"num_key_value_heads": None, "intermediate_size": None, "num_experts_per_tok": 1}
    experts = values.get("num_local_experts")
    if isinstance(experts, int) and experts > 1:
        defaults["num_local_experts"] = experts
        values.setdefault("moe_intermediate_size", values.get("intermediate_size"))
    if values.get("kv_lora_rank"):
        defaults |= {"kv_lora_rank": None, **_LATENT}
    defaults["tie_word_embeddings"] = not _is_gated(values)  # as GPT-2 and as Llama
    if not values.get("shared_expert_intermediate_size"):
        values.pop("shared_expert_intermediate_size", None)
    for name, least in ((_FIRST, 0), (_EVERY, 1)):
        values[name] = value if isinstance(value := values.get(name), int) and value >= least else least
    sparse = partial(find_sparse, first=_FIRST, every=_EVERY, dense="mlp_only_layers")
    kinds: dict[str, LayerKind] = {"sparse": sparse} if experts not in (None, 0, 1) else {}
    kinds |= {"linear": is_linear_layer} if values.get("linear_num_value_heads") is not None else {}  # as in Qwen3.5
    return Family(_layer_text(values, kinds), defaults, kinds=kinds), ConfigFields(values, defaults, {})


_VOCABULARY = 152_064
"""Of a model of which the name alone is known: Qwen's, among the largest, since logits are what it makes."""
_TIED_BELOW = 4e9
_WITH_ENCODER = re.compile(r"\b(flan|(by|m|um)?t5|mt0|ul2|m?bart|pegasus|nllb|m2m)\b", re.IGNORECASE)
_EXPERTS = re.compile(r"moe|\d+x\d|a\d+(\.\d+)?b|\d+e(?![a-z\d])", re.IGNORECASE)


def config_of_name(name: str) -> tuple[Mapping[str, Any], str] | None:
    """The configuration that a name alone stands for, and what it is: that of the catalogue for a folder of another
    machine, else a dense model of the size in the name; None where it says no size, or experts, or is misspelt.
    """
    short_name = name.rstrip("/").rpartition("/")[2]
    known = catalogue_config(short_name)
    if known is not None:
        return known, f"`{short_name}` of the catalogue"
    size, is_slip = size_in_name(short_name), "/" not in name and is_misspelt(name)
    if size is None or not 5e7 <= size <= 2e12 or is_slip or _EXPERTS.search(short_name):
        return None
    is_tied = size < _TIED_BELOW
    ends = _VOCABULARY * (1 if is_tied else 2)
    hidden = next(width for width in range(128, 1 << 16, 128) if 12 * width**3 // 128 + ends * width >= size)
    config = {
        "model_type": "llama",
        "hidden_size": hidden,
        "num_hidden_layers": max(1, round((size - ends * hidden) / (12 * hidden**2))),
        "num_attention_heads": hidden // 128,
        "intermediate_size": 8 * hidden // 3,
        "vocab_size": _VOCABULARY,
        "tie_word_embeddings": is_tied,
    }
    like = "a Llama-like model of the size in its name"
    return config, f"{like}, and not with an encoder" if _WITH_ENCODER.search(short_name) else like


def _rename(config: Mapping[str, Any]) -> dict[str, Any]:
    values = {key: _first(value) for key, value in config.items()}
    for name, others in _NAMES.items():
        if values.get(name) is None:
            found = next((values[other] for other in others if values.get(other) is not None), None)
            if found is not None:
                values[name] = found
    return values


def _first(value: Any) -> Any:
    """The number of a list that repeats one number for each layer, else the value itself."""
    is_repeated = isinstance(value, list) and value and all(isinstance(v, int) and v == value[0] for v in value)
    return value[0] if is_repeated and len(value) > 1 else value


def _is_gated(values: Mapping[str, Any]) -> bool:
    """Has the MLP a gate? By the name of its activation, with `relu2` by a narrow width; else by a width that is not
    four times the hidden size.
    """
    activation, width = values.get("activation"), values.get("intermediate_size")
    if activation == "relu2" and isinstance(width, int):
        return width < _SQUARED_PLAIN_WIDTH * int(values["hidden_size"])
    if isinstance(activation, str):
        return any(word in activation.lower() for word in _GATED) or "hidden_activation" in values
    return width not in (None, 4 * values["hidden_size"])


def _layer_text(values: Mapping[str, Any], kinds: Collection[str]) -> str:
    heads = "$latent" if values.get("kv_lora_rank") else "$attention ?qkv_bias -"
    heads = f"linear?$linear, !linear?{heads}" if "linear" in kinds else heads
    mlp = f"{'$mlp' if _is_gated(values) else '$plain_mlp'} mlp intermediate_size|4H -"
    if "sparse" in kinds:
        shared = values.get("shared_expert_intermediate_size")
        width = "shared_expert_intermediate_size" if isinstance(shared, int) else "n_shared_experts*W"
        has_shared = shared > 0 if isinstance(shared, int) else shared is None and values.get("n_shared_experts")
        beside = f"sparse?$mlp mlp.shared_experts {width} -, " * bool(has_shared)
        mlp = f"sparse?mlp.gate E H, sparse?$experts W, {beside}!sparse?{mlp}"
    return f"{heads}, {mlp}, $norms"
