"""The model families: how each `model_type` is built, parameter by parameter, and the defaults of `transformers`.

One function a family, written down from what `transformers` 5 builds; `tests/with_deepspeed/test_model_families.py`
compares every one of them with the real modules on the meta device. No weights and no torch here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from harness.facts import moe_model_families as experts
from harness.facts.model_parts import (
    FOUR_NORMS,
    TWO_NORMS,
    ConfigFields,
    Parameter,
    Parameters,
    Parts,
    attention,
    decoder,
    gated_mlp,
    layer_norm,
    linear,
    norms,
    qk_norms,
    repeat_layer,
)


def _mlp(f: ConfigFields, bias: bool = False) -> Parameters:
    return gated_mlp(f.count("hidden_size"), f.count("intermediate_size"), bias)


def _layer_norms(f: ConfigFields, names: tuple[str, ...] = TWO_NORMS) -> Parameters:
    return norms(f.count("hidden_size"), *names)


def _llama(f: ConfigFields) -> Parts:
    bias = f.flag("attention_bias")
    return decoder(f, repeat_layer(f, (*attention(f, bias, bias), *_mlp(f, f.flag("mlp_bias")), *_layer_norms(f))))


def _mistral(f: ConfigFields) -> Parts:
    return decoder(f, repeat_layer(f, (*attention(f, False, False), *_mlp(f), *_layer_norms(f))))


def _qwen2(f: ConfigFields) -> Parts:
    return decoder(f, repeat_layer(f, (*attention(f, True, False), *_mlp(f), *_layer_norms(f))))


def _qwen3(f: ConfigFields) -> Parts:
    bias = f.flag("attention_bias")
    return decoder(f, repeat_layer(f, (*attention(f, bias, bias), *qk_norms(f), *_mlp(f), *_layer_norms(f))))


def _gemma(f: ConfigFields) -> Parts:
    bias = f.flag("attention_bias")
    return decoder(f, repeat_layer(f, (*attention(f, bias, bias), *_mlp(f), *_layer_norms(f))))


def _gemma2(f: ConfigFields) -> Parts:
    bias = f.flag("attention_bias")
    return decoder(f, repeat_layer(f, (*attention(f, bias, bias), *_mlp(f), *_layer_norms(f, FOUR_NORMS))))


def _gemma3(f: ConfigFields, model: str = "model") -> Parts:
    bias = f.flag("attention_bias")
    layer = (*attention(f, bias, bias), *qk_norms(f), *_mlp(f), *_layer_norms(f, FOUR_NORMS))
    return decoder(f, repeat_layer(f, layer), model)


def _gemma3_with_images(f: ConfigFields) -> Parts:
    """Gemma 3 from 4B on: a SigLIP tower and a projector stand before the language model, trained with text or not."""
    vision = ConfigFields(f.get("vision_config") or {}, _SIGLIP, {})
    before, layers, after = _gemma3(f, "model.language_model")
    wide = vision.count("hidden_size")
    projector = (
        Parameter("model.multi_modal_projector.mm_input_projection_weight", (wide, f.count("hidden_size"))),
        *norms(wide, "model.multi_modal_projector.mm_soft_emb_norm"),
    )
    return (*_siglip(vision, "model.vision_tower"), *projector, *before), layers, after


def _siglip(v: ConfigFields, tower: str) -> Parameters:
    wide, mlp, patch = v.count("hidden_size"), v.count("intermediate_size"), v.count("patch_size")
    places = (v.count("image_size") // patch) ** 2
    layers: list[Parameter] = []
    for index in range(v.num_layers):
        name = f"{tower}.encoder.layers.{index}"
        layers += layer_norm(wide, f"{name}.layer_norm1")
        for part in ("k_proj", "v_proj", "q_proj", "out_proj"):
            layers += linear(f"{name}.self_attn.{part}", wide, wide, True)
        layers += (*layer_norm(wide, f"{name}.layer_norm2"), *linear(f"{name}.mlp.fc1", mlp, wide, True))
        layers += linear(f"{name}.mlp.fc2", wide, mlp, True)
    return (
        Parameter(f"{tower}.embeddings.patch_embedding.weight", (wide, v.count("num_channels"), patch, patch)),
        Parameter(f"{tower}.embeddings.patch_embedding.bias", (wide,)),
        Parameter(f"{tower}.embeddings.position_embedding.weight", (places, wide)),
        *layers,
        *layer_norm(wide, f"{tower}.post_layernorm"),
        *(_siglip_head(wide, mlp, f"{tower}.head") if v.flag("vision_use_head") else ()),
    )


def _siglip_head(wide: int, mlp: int, head: str) -> Parameters:
    return (
        Parameter(f"{head}.probe", (1, 1, wide)),
        Parameter(f"{head}.attention.in_proj_weight", (3 * wide, wide)),
        Parameter(f"{head}.attention.in_proj_bias", (3 * wide,)),
        *linear(f"{head}.attention.out_proj", wide, wide, True),
        *layer_norm(wide, f"{head}.layernorm"),
        *linear(f"{head}.mlp.fc1", mlp, wide, True),
        *linear(f"{head}.mlp.fc2", wide, mlp, True),
    )


def _phi(f: ConfigFields) -> Parts:
    """Phi 1, 1.5 and 2: biases everywhere, one layer norm a layer."""
    hidden, wide, vocab = f.count("hidden_size"), f.count("intermediate_size"), f.count("vocab_size")
    queries, keys = f.count("num_attention_heads") * f.head_dim, f.kv_heads * f.head_dim
    narrow = ("self_attn.q_layernorm", "self_attn.k_layernorm") if f.flag("qk_layernorm") else ()
    layer = (
        *linear("self_attn.q_proj", queries, hidden, True),
        *linear("self_attn.k_proj", keys, hidden, True),
        *linear("self_attn.v_proj", keys, hidden, True),
        *linear("self_attn.dense", hidden, queries, True),
        *(p for name in narrow for p in layer_norm(f.head_dim, name)),
        *linear("mlp.fc1", wide, hidden, True),
        *linear("mlp.fc2", hidden, wide, True),
        *layer_norm(hidden, "input_layernorm"),
    )
    # a tied head has a bias all the same
    head = linear("lm_head", vocab, hidden, True)[1 if f.flag("tie_word_embeddings") else 0 :]
    after = (*layer_norm(hidden, "model.final_layernorm"), *head)
    return linear("model.embed_tokens", vocab, hidden), repeat_layer(f, layer), after


def _phi3(f: ConfigFields) -> Parts:
    hidden, wide, queries = (
        f.count("hidden_size"),
        f.count("intermediate_size"),
        f.count("num_attention_heads") * f.head_dim,
    )
    layer = (
        *linear("self_attn.o_proj", hidden, queries),
        *linear("self_attn.qkv_proj", queries + 2 * f.kv_heads * f.head_dim, hidden),
        *linear("mlp.gate_up_proj", 2 * wide, hidden),
        *linear("mlp.down_proj", hidden, wide),
        *norms(hidden, *TWO_NORMS),
    )
    return decoder(f, repeat_layer(f, layer))


def _gpt2(f: ConfigFields) -> Parts:
    hidden = f.count("hidden_size")
    wide = f.count("n_inner", 4 * hidden)

    def conv(name: str, into: int, out: int) -> Parameters:  # transformers' Conv1D keeps its weight transposed
        return Parameter(f"{name}.weight", (into, out)), Parameter(f"{name}.bias", (out,))

    layer = (
        *layer_norm(hidden, "ln_1"),
        *conv("attn.c_attn", hidden, 3 * hidden),
        *conv("attn.c_proj", hidden, hidden),
        *layer_norm(hidden, "ln_2"),
        *conv("mlp.c_fc", hidden, wide),
        *conv("mlp.c_proj", wide, hidden),
    )
    vocab = f.count("vocab_size")
    before = (*linear("transformer.wte", vocab, hidden), *linear("transformer.wpe", f.count("n_positions"), hidden))
    head = () if f.flag("tie_word_embeddings") else linear("lm_head", vocab, hidden)
    return before, repeat_layer(f, layer), (*layer_norm(hidden, "transformer.ln_f"), *head)


def _gpt_neox(f: ConfigFields) -> Parts:
    hidden, wide, vocab = f.count("hidden_size"), f.count("intermediate_size"), f.count("vocab_size")
    bias = f.flag("attention_bias")
    layer = (
        *layer_norm(hidden, "input_layernorm"),
        *layer_norm(hidden, "post_attention_layernorm"),
        *linear("attention.query_key_value", 3 * hidden, hidden, bias),
        *linear("attention.dense", hidden, hidden, bias),
        *linear("mlp.dense_h_to_4h", wide, hidden, True),
        *linear("mlp.dense_4h_to_h", hidden, wide, True),
    )
    head = () if f.flag("tie_word_embeddings") else linear("lm_head", vocab, hidden)
    after = (*layer_norm(hidden, "gpt_neox.final_layer_norm"), *head)
    return linear("gpt_neox.embed_in", vocab, hidden), repeat_layer(f, layer), after


def _falcon(f: ConfigFields) -> Parts:
    hidden, vocab, bias = f.count("hidden_size"), f.count("vocab_size"), f.flag("bias")
    wide = f.count("ffn_hidden_size", 4 * hidden)
    layer = (
        *linear("self_attention.query_key_value", _falcon_qkv(f), hidden, bias),
        *linear("self_attention.dense", hidden, hidden, bias),
        *linear("mlp.dense_h_to_4h", wide, hidden, bias),
        *linear("mlp.dense_4h_to_h", hidden, wide, bias),
        *(p for name in _falcon_norms(f) for p in layer_norm(hidden, name)),
    )
    head = () if f.flag("tie_word_embeddings") else linear("lm_head", vocab, hidden)
    after = (*layer_norm(hidden, "transformer.ln_f"), *head)
    return linear("transformer.word_embeddings", vocab, hidden), repeat_layer(f, layer), after


def _falcon_qkv(f: ConfigFields) -> int:
    """Rows of the fused projection: grouped keys (40B), one key head (7B), or as many as there are queries (1B)."""
    if f.flag("new_decoder_architecture"):
        return (2 * f.kv_heads + f.count("num_attention_heads")) * f.head_dim
    return f.count("hidden_size") + 2 * f.head_dim if f.flag("multi_query") else 3 * f.count("hidden_size")


def _falcon_norms(f: ConfigFields) -> tuple[str, ...]:
    new = f.flag("new_decoder_architecture")
    two = f.count("num_ln_in_parallel_attn", 2 if new else 1) == 2
    after = () if f.flag("parallel_attn") else ("post_attention_layernorm",)
    return (*after, *(("ln_attn", "ln_mlp") if two else ("input_layernorm",)))


class Family(NamedTuple):
    """How a `model_type` is built: its parameters, the defaults of `transformers`, other names of keys.

    `inside` names the part of the configuration that describes the language model, where it is nested.
    """

    build: Callable[[ConfigFields], Parts]
    defaults: Mapping[str, Any]
    layer_path: str
    aliases: Mapping[str, str]
    text_config_key: str = ""


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
_PHI = _defaults(2048, 24, 32, None, 8192, 51200, qk_layernorm=False)
_PHI3 = _defaults(3072, 32, 32, None, 8192, 32064)
_GEMMA = _defaults(3072, 28, 16, 16, 24576, 256000, head_dim=256, attention_bias=False, tie_word_embeddings=True)
_GEMMA2 = _defaults(2304, 26, 8, 4, 9216, 256000, head_dim=256, attention_bias=False, tie_word_embeddings=True)
_GEMMA3 = {**_GEMMA2, "vocab_size": 262208}
_SIGLIP = {
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "intermediate_size": 3072,
    "num_channels": 3,
    "image_size": 224,
    "patch_size": 16,
    "vision_use_head": True,
}
_FALCON = {
    **_defaults(4544, 32, 71, None, 18176, 65024, tie_word_embeddings=True),
    "intermediate_size": None,
    "ffn_hidden_size": None,
    "bias": False,
    "multi_query": True,
    "parallel_attn": True,
    "new_decoder_architecture": False,
    "num_ln_in_parallel_attn": None,
}
_MIXTRAL = _defaults(4096, 32, 32, 8, 14336, 32000, head_dim=None, num_local_experts=8, num_experts_per_tok=2)
_QWEN_MOE = {"decoder_sparse_step": 1, "mlp_only_layers": None}
_QWEN2_MOE = {
    **_defaults(2048, 24, 16, 16, 5632, 151936, qkv_bias=True, num_local_experts=60, num_experts_per_tok=4),
    **_QWEN_MOE,
    "moe_intermediate_size": 1408,
    "shared_expert_intermediate_size": 5632,
}
_QWEN3_MOE = {
    **_defaults(2048, 24, 32, 4, 6144, 151936, attention_bias=False, num_local_experts=128, num_experts_per_tok=8),
    **_QWEN_MOE,
    "moe_intermediate_size": 768,
}
_GPT_OSS = {
    **_defaults(2880, 36, 64, 8, 2880, 201088, head_dim=64, attention_bias=True),
    "num_local_experts": 128,
    "num_experts_per_tok": 4,
}
_LATENT = {"kv_lora_rank": 512, "q_lora_rank": 1536, "qk_rope_head_dim": 64, "v_head_dim": 128, "qk_nope_head_dim": 128}
_DEEPSEEK_V2 = {
    **_defaults(4096, 32, 32, None, 11008, 102400, attention_bias=False, num_local_experts=64, num_experts_per_tok=1),
    **_LATENT,
    "moe_intermediate_size": 1407,
    "n_shared_experts": 2,
    "first_k_dense_replace": 0,
}
_DEEPSEEK_V3 = {
    **_defaults(7168, 61, 128, 128, 18432, 129280, attention_bias=False, num_local_experts=256, num_experts_per_tok=8),
    **_LATENT,
    "moe_intermediate_size": 2048,
    "n_shared_experts": 1,
    "first_k_dense_replace": 3,
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
_EXPERTS = {"num_experts": "num_local_experts"}
_ROUTED = {"n_routed_experts": "num_local_experts"}

FAMILIES: Mapping[str, Family] = {
    "llama": Family(_llama, _LLAMA, "model.layers", {}),
    "mistral": Family(_mistral, _MISTRAL, "model.layers", {}),
    "qwen2": Family(_qwen2, _QWEN2, "model.layers", {}),
    "qwen3": Family(_qwen3, _QWEN3, "model.layers", {}),
    "phi": Family(_phi, _PHI, "model.layers", {}),
    "phi3": Family(_phi3, _PHI3, "model.layers", {}),
    "gemma": Family(_gemma, _GEMMA, "model.layers", {}),
    "gemma2": Family(_gemma2, _GEMMA2, "model.layers", {}),
    "gemma3_text": Family(_gemma3, _GEMMA3, "model.layers", {}),
    "gemma3": Family(_gemma3_with_images, _GEMMA3, "model.language_model.layers", {}, "text_config"),
    "falcon": Family(_falcon, _FALCON, "transformer.h", {"num_kv_heads": "num_key_value_heads"}),
    "gpt2": Family(_gpt2, _GPT2, "transformer.h", _GPT2_NAMES),
    "gpt_neox": Family(_gpt_neox, _NEOX, "gpt_neox.layers", {}),
    "mixtral": Family(experts.mixtral, _MIXTRAL, "model.layers", {}),
    "qwen2_moe": Family(experts.qwen2_moe, _QWEN2_MOE, "model.layers", _EXPERTS),
    "qwen3_moe": Family(experts.qwen3_moe, _QWEN3_MOE, "model.layers", _EXPERTS),
    "gpt_oss": Family(experts.gpt_oss, _GPT_OSS, "model.layers", {}),
    "deepseek_v2": Family(experts.deepseek, _DEEPSEEK_V2, "model.layers", _ROUTED),
    "deepseek_v3": Family(experts.deepseek, _DEEPSEEK_V3, "model.layers", _ROUTED),
}
