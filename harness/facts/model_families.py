"""The parameters of each model family, by name and shape, in the order of `named_parameters()`.

One function a family, written down from what `transformers` 5 builds; `tests/with_deepspeed/test_model_families.py`
compares every one of them with the real modules on the meta device. No weights and no torch here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any


@dataclass(frozen=True, slots=True)
class Parameter:
    """One weight: its name inside the model or inside its layer, and its shape in elements."""

    name: str
    shape: tuple[int, ...]

    @property
    def numel(self) -> int:
        """Elements."""
        return prod(self.shape)


Parameters = tuple[Parameter, ...]
Parts = tuple[Parameters, Parameters, Parameters]


class BadConfig(ValueError):
    """The configuration has a value that no model can be built from; the text says which."""


class Fields:
    """Read access to a `transformers` configuration, with the family's defaults and its other names for one thing."""

    def __init__(self, config: Mapping[str, Any], defaults: Mapping[str, Any], aliases: Mapping[str, str]) -> None:
        self._values = {**defaults, **{aliases.get(key, key): value for key, value in config.items()}}

    def get(self, key: str) -> Any:
        """The value as it is, None where there is none."""
        return self._values.get(key)

    def flag(self, key: str) -> bool:
        """Whether it is set and true."""
        return bool(self._values.get(key))

    def count(self, key: str, instead: int | None = None) -> int:
        """A whole number of at least 1; `instead` is what `None` means."""
        value = self._values.get(key)
        value = instead if value is None else value
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise BadConfig(f"`{key}` is `{value}` where a whole number of at least 1 belongs")
        return value

    @property
    def head_dim(self) -> int:
        """Width of an attention head."""
        heads = self.count("num_attention_heads")
        return self.count("head_dim", self.count("hidden_size") // heads or None)

    @property
    def kv_heads(self) -> int:
        """Key and value heads; as many as there are query heads unless it says otherwise."""
        return self.count("num_key_value_heads", self.count("num_attention_heads"))


def _linear(name: str, out: int, into: int, bias: bool = False) -> Parameters:
    weight = Parameter(f"{name}.weight", (out, into))
    return (weight, Parameter(f"{name}.bias", (out,))) if bias else (weight,)


def _norms(hidden: int, *names: str) -> Parameters:
    return tuple(Parameter(f"{name}.weight", (hidden,)) for name in names)


def _layer_norm(hidden: int, name: str) -> Parameters:
    return Parameter(f"{name}.weight", (hidden,)), Parameter(f"{name}.bias", (hidden,))


def _attention(f: Fields, qkv_bias: bool, out_bias: bool) -> Parameters:
    hidden, queries, keys = f.count("hidden_size"), f.count("num_attention_heads") * f.head_dim, f.kv_heads * f.head_dim
    return (
        *_linear("self_attn.q_proj", queries, hidden, qkv_bias),
        *_linear("self_attn.k_proj", keys, hidden, qkv_bias),
        *_linear("self_attn.v_proj", keys, hidden, qkv_bias),
        *_linear("self_attn.o_proj", hidden, queries, out_bias),
    )


def _gated_mlp(f: Fields, bias: bool = False) -> Parameters:
    hidden, wide = f.count("hidden_size"), f.count("intermediate_size")
    return (
        *_linear("mlp.gate_proj", wide, hidden, bias),
        *_linear("mlp.up_proj", wide, hidden, bias),
        *_linear("mlp.down_proj", hidden, wide, bias),
    )


def _experts(f: Fields, wide: int) -> Parameters:
    experts, hidden = f.count("num_local_experts"), f.count("hidden_size")
    return (
        Parameter("mlp.experts.gate_up_proj", (experts, 2 * wide, hidden)),
        Parameter("mlp.experts.down_proj", (experts, hidden, wide)),
    )


_TWO_NORMS = ("input_layernorm", "post_attention_layernorm")
_FOUR_NORMS = (*_TWO_NORMS, "pre_feedforward_layernorm", "post_feedforward_layernorm")


def _decoder(f: Fields, layer: Parameters) -> Parts:
    """Embedding, layers, final norm, head: what all Llama-like models share. A tied head has no weight of its own."""
    hidden, vocab = f.count("hidden_size"), f.count("vocab_size")
    head = () if f.flag("tie_word_embeddings") else _linear("lm_head", vocab, hidden)
    return _linear("model.embed_tokens", vocab, hidden), layer, (*_norms(hidden, "model.norm"), *head)


def _llama(f: Fields) -> Parts:
    bias = f.flag("attention_bias")
    mlp = _gated_mlp(f, f.flag("mlp_bias"))
    return _decoder(f, (*_attention(f, bias, bias), *mlp, *_norms(f.count("hidden_size"), *_TWO_NORMS)))


def _mistral(f: Fields) -> Parts:
    return _decoder(f, (*_attention(f, False, False), *_gated_mlp(f), *_norms(f.count("hidden_size"), *_TWO_NORMS)))


def _qwen2(f: Fields) -> Parts:
    return _decoder(f, (*_attention(f, True, False), *_gated_mlp(f), *_norms(f.count("hidden_size"), *_TWO_NORMS)))


def _qk_norms(f: Fields) -> Parameters:
    return _norms(f.head_dim, "self_attn.q_norm", "self_attn.k_norm")


def _qwen3(f: Fields) -> Parts:
    bias = f.flag("attention_bias")
    norms = _norms(f.count("hidden_size"), *_TWO_NORMS)
    return _decoder(f, (*_attention(f, bias, bias), *_qk_norms(f), *_gated_mlp(f), *norms))


def _gemma2(f: Fields) -> Parts:
    bias = f.flag("attention_bias")
    return _decoder(f, (*_attention(f, bias, bias), *_gated_mlp(f), *_norms(f.count("hidden_size"), *_FOUR_NORMS)))


def _gemma3(f: Fields) -> Parts:
    bias = f.flag("attention_bias")
    norms = _norms(f.count("hidden_size"), *_FOUR_NORMS)
    return _decoder(f, (*_attention(f, bias, bias), *_qk_norms(f), *_gated_mlp(f), *norms))


def _phi3(f: Fields) -> Parts:
    hidden, wide, queries = (
        f.count("hidden_size"),
        f.count("intermediate_size"),
        f.count("num_attention_heads") * f.head_dim,
    )
    layer = (
        *_linear("self_attn.o_proj", hidden, queries),
        *_linear("self_attn.qkv_proj", queries + 2 * f.kv_heads * f.head_dim, hidden),
        *_linear("mlp.gate_up_proj", 2 * wide, hidden),
        *_linear("mlp.down_proj", hidden, wide),
        *_norms(hidden, *_TWO_NORMS),
    )
    return _decoder(f, layer)


def _mixtral(f: Fields) -> Parts:
    hidden = f.count("hidden_size")
    router = _linear("mlp.gate", f.count("num_local_experts"), hidden)
    experts = _experts(f, f.count("intermediate_size"))
    return _decoder(f, (*_attention(f, False, False), *router, *experts, *_norms(hidden, *_TWO_NORMS)))


def _qwen3_moe(f: Fields) -> Parts:
    if f.get("mlp_only_layers") or f.get("decoder_sparse_step") != 1:
        raise BadConfig("`mlp_only_layers` or `decoder_sparse_step` make layers of two kinds, which are not counted")
    bias, hidden = f.flag("attention_bias"), f.count("hidden_size")
    router = _linear("mlp.gate", f.count("num_local_experts"), hidden)
    experts = _experts(f, f.count("moe_intermediate_size"))
    return _decoder(f, (*_attention(f, bias, bias), *_qk_norms(f), *experts, *router, *_norms(hidden, *_TWO_NORMS)))


def _gpt2(f: Fields) -> Parts:
    hidden = f.count("hidden_size")
    wide = f.count("n_inner", 4 * hidden)

    def conv(name: str, into: int, out: int) -> Parameters:  # transformers' Conv1D keeps its weight transposed
        return Parameter(f"{name}.weight", (into, out)), Parameter(f"{name}.bias", (out,))

    layer = (
        *_layer_norm(hidden, "ln_1"),
        *conv("attn.c_attn", hidden, 3 * hidden),
        *conv("attn.c_proj", hidden, hidden),
        *_layer_norm(hidden, "ln_2"),
        *conv("mlp.c_fc", hidden, wide),
        *conv("mlp.c_proj", wide, hidden),
    )
    vocab = f.count("vocab_size")
    before = (*_linear("transformer.wte", vocab, hidden), *_linear("transformer.wpe", f.count("n_positions"), hidden))
    head = () if f.flag("tie_word_embeddings") else _linear("lm_head", vocab, hidden)
    return before, layer, (*_layer_norm(hidden, "transformer.ln_f"), *head)


def _gpt_neox(f: Fields) -> Parts:
    hidden, wide, vocab = f.count("hidden_size"), f.count("intermediate_size"), f.count("vocab_size")
    bias = f.flag("attention_bias")
    layer = (
        *_layer_norm(hidden, "input_layernorm"),
        *_layer_norm(hidden, "post_attention_layernorm"),
        *_linear("attention.query_key_value", 3 * hidden, hidden, bias),
        *_linear("attention.dense", hidden, hidden, bias),
        *_linear("mlp.dense_h_to_4h", wide, hidden, True),
        *_linear("mlp.dense_4h_to_h", hidden, wide, True),
    )
    head = () if f.flag("tie_word_embeddings") else _linear("lm_head", vocab, hidden)
    return (
        _linear("gpt_neox.embed_in", vocab, hidden),
        layer,
        (*_layer_norm(hidden, "gpt_neox.final_layer_norm"), *head),
    )


@dataclass(frozen=True, slots=True)
class Family:
    """How a `model_type` is built: its parameters, the defaults of `transformers`, other names of keys."""

    build: Callable[[Fields], Parts]
    defaults: Mapping[str, Any]
    layers: str
    aliases: Mapping[str, str]


def _defaults(
    hidden: int, layers: int, heads: int, kv: int | None, wide: int, vocab: int, **rest: Any
) -> dict[str, Any]:
    return {
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv,
        "intermediate_size": wide,
        "vocab_size": vocab,
        "tie_word_embeddings": False,
        **rest,
    }


_LLAMA = _defaults(4096, 32, 32, None, 11008, 32000, head_dim=None, attention_bias=False, mlp_bias=False)
_MISTRAL = _defaults(4096, 32, 32, 8, 14336, 32000, head_dim=None)
_QWEN2 = _defaults(4096, 32, 32, 32, 22016, 151936)
_QWEN3 = _defaults(4096, 32, 32, 32, 22016, 151936, head_dim=128, attention_bias=False)
_PHI3 = _defaults(3072, 32, 32, None, 8192, 32064)
_GEMMA2 = _defaults(2304, 26, 8, 4, 9216, 256000, head_dim=256, attention_bias=False, tie_word_embeddings=True)
_GEMMA3 = {**_GEMMA2, "vocab_size": 262208}
_MIXTRAL = _defaults(4096, 32, 32, 8, 14336, 32000, head_dim=None, num_local_experts=8, num_experts_per_tok=2)
_QWEN3_MOE = {
    **_defaults(2048, 24, 32, 4, 6144, 151936, attention_bias=False),
    "num_local_experts": 128,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 768,
    "decoder_sparse_step": 1,
    "mlp_only_layers": None,
}
_GPT2 = {
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "vocab_size": 50257,
    "n_positions": 1024,
    "n_inner": None,
    "tie_word_embeddings": True,
}
_GPT2_NAMES = {
    "n_embd": "hidden_size",
    "n_layer": "num_hidden_layers",
    "n_head": "num_attention_heads",
    "max_position_embeddings": "n_positions",
}
_NEOX = {
    "hidden_size": 6144,
    "num_hidden_layers": 44,
    "num_attention_heads": 64,
    "intermediate_size": 24576,
    "vocab_size": 50432,
    "attention_bias": True,
    "tie_word_embeddings": False,
}

FAMILIES: Mapping[str, Family] = {
    "llama": Family(_llama, _LLAMA, "model.layers", {}),
    "mistral": Family(_mistral, _MISTRAL, "model.layers", {}),
    "qwen2": Family(_qwen2, _QWEN2, "model.layers", {}),
    "qwen3": Family(_qwen3, _QWEN3, "model.layers", {}),
    "phi3": Family(_phi3, _PHI3, "model.layers", {}),
    "gemma2": Family(_gemma2, _GEMMA2, "model.layers", {}),
    "gemma3_text": Family(_gemma3, _GEMMA3, "model.layers", {}),
    "mixtral": Family(_mixtral, _MIXTRAL, "model.layers", {}),
    "qwen3_moe": Family(_qwen3_moe, _QWEN3_MOE, "model.layers", {"num_experts": "num_local_experts"}),
    "gpt2": Family(_gpt2, _GPT2, "transformer.h", _GPT2_NAMES),
    "gpt_neox": Family(_gpt_neox, _NEOX, "gpt_neox.layers", {}),
}
