# SPDX-License-Identifier: Apache-2.0
"""Dense families whose parameters are counted and of which nothing was run: one function a family.

`tests/training/facts/test_model_families.py` compares them with the modules of `transformers` 5 on the meta device.
"""

from __future__ import annotations

from harness.facts.model_parts import (
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
    repeat_layer,
)


def _mlp(fields: ConfigFields, bias: bool = False) -> Parameters:
    return gated_mlp(fields.count("hidden_size"), fields.count("intermediate_size"), bias)


def wide_qk_norms(fields: ConfigFields) -> Parameters:
    """Norms of queries and keys over all heads at once."""
    heads = fields.count("num_attention_heads")
    return (
        *norms(heads * fields.head_dim, "self_attn.q_norm"),
        *norms(fields.kv_heads * fields.head_dim, "self_attn.k_norm"),
    )


def seed_oss(fields: ConfigFields) -> Parts:
    """Seed-OSS: Llama with biases of queries, keys and values apart from that of the output."""
    heads = attention(fields, fields.flag("attention_bias"), fields.flag("attention_out_bias"))
    ends = norms(fields.count("hidden_size"), *TWO_NORMS)
    return decoder(fields, repeat_layer(fields, (*heads, *_mlp(fields, fields.flag("mlp_bias")), *ends)))


def ernie(fields: ConfigFields) -> Parts:
    """ERNIE 4.5: Llama with one key for all biases."""
    bias = fields.flag("use_bias")
    ends = norms(fields.count("hidden_size"), *TWO_NORMS)
    return decoder(fields, repeat_layer(fields, (*attention(fields, bias, bias), *_mlp(fields, bias), *ends)))


def olmo2(fields: ConfigFields) -> Parts:
    """OLMo 2 and 3: norms after attention and MLP, and norms over all queries and keys."""
    bias = fields.flag("attention_bias")
    ends = norms(fields.count("hidden_size"), "post_attention_layernorm", "post_feedforward_layernorm")
    layer = (*attention(fields, bias, bias), *wide_qk_norms(fields), *_mlp(fields), *ends)
    return decoder(fields, repeat_layer(fields, layer))


def hunyuan(fields: ConfigFields) -> Parts:
    """Hunyuan: Qwen 3 under other names."""
    bias = fields.flag("attention_bias")
    heads = norms(fields.head_dim, "self_attn.query_layernorm", "self_attn.key_layernorm")
    ends = norms(fields.count("hidden_size"), *TWO_NORMS)
    return decoder(fields, repeat_layer(fields, (*attention(fields, bias, bias), *heads, *_mlp(fields), *ends)))


def cohere(fields: ConfigFields) -> Parts:
    """Command: one norm a layer for attention and MLP side by side; norms of every head where it says so."""
    bias, width = fields.flag("attention_bias"), fields.head_dim
    head_norms = (
        Parameter("self_attn.q_norm.weight", (fields.count("num_attention_heads"), width)),
        Parameter("self_attn.k_norm.weight", (fields.kv_heads, width)),
    )
    layer = (
        *attention(fields, bias, bias),
        *(head_norms if fields.flag("use_qk_norm") else ()),
        *_mlp(fields),
        *norms(fields.count("hidden_size"), "input_layernorm"),
    )
    return decoder(fields, repeat_layer(fields, layer))


def nemotron(fields: ConfigFields) -> Parts:
    """Nemotron and Minitron: an MLP without a gate, layer norms with biases."""
    hidden, intermediate = fields.count("hidden_size"), fields.count("intermediate_size")
    bias, mlp_bias = fields.flag("attention_bias"), fields.flag("mlp_bias")
    layer = (
        *attention(fields, bias, bias),
        *linear("mlp.up_proj", intermediate, hidden, mlp_bias),
        *linear("mlp.down_proj", hidden, intermediate, mlp_bias),
        *(parameter for name in TWO_NORMS for parameter in layer_norm(hidden, name)),
    )
    before, layers, after = decoder(fields, repeat_layer(fields, layer))
    return before, layers, (*layer_norm(hidden, "model.norm"), *after[1:])


def bloom(fields: ConfigFields) -> Parts:
    """BLOOM: fused queries, keys and values, biases everywhere, a norm of the embeddings, no positions."""
    hidden, vocab = fields.count("hidden_size"), fields.count("vocab_size")
    layer = (
        *layer_norm(hidden, "input_layernorm"),
        *linear("self_attention.query_key_value", 3 * hidden, hidden, True),
        *linear("self_attention.dense", hidden, hidden, True),
        *layer_norm(hidden, "post_attention_layernorm"),
        *linear("mlp.dense_h_to_4h", 4 * hidden, hidden, True),
        *linear("mlp.dense_4h_to_h", hidden, 4 * hidden, True),
    )
    embedding = linear("transformer.word_embeddings", vocab, hidden)
    before = (*embedding, *layer_norm(hidden, "transformer.word_embeddings_layernorm"))
    head = () if fields.flag("tie_word_embeddings") else linear("lm_head", vocab, hidden)
    return before, repeat_layer(fields, layer), (*layer_norm(hidden, "transformer.ln_f"), *head)


def opt(fields: ConfigFields) -> Parts:
    """OPT from 1.3B on, and 125M: learned positions (two more rows than there are positions), biases everywhere."""
    hidden, vocab = fields.count("hidden_size"), fields.count("vocab_size")
    intermediate = fields.count("intermediate_size")
    layer = (
        *(p for name in ("k_proj", "v_proj", "q_proj", "out_proj") for p in _square(f"self_attn.{name}", hidden)),
        *layer_norm(hidden, "self_attn_layer_norm"),
        *linear("fc1", intermediate, hidden, True),
        *linear("fc2", hidden, intermediate, True),
        *layer_norm(hidden, "final_layer_norm"),
    )
    before = (
        *linear("model.decoder.embed_tokens", vocab, hidden),
        *linear("model.decoder.embed_positions", fields.count("max_position_embeddings") + 2, hidden),
        *layer_norm(hidden, "model.decoder.final_layer_norm"),
    )
    head = () if fields.flag("tie_word_embeddings") else linear("lm_head", vocab, hidden)
    return before, repeat_layer(fields, layer), head


def _square(name: str, hidden: int) -> Parameters:
    return linear(name, hidden, hidden, True)


def mpt(fields: ConfigFields) -> Parts:
    """MPT: fused queries, keys and values, no biases, no positions; `transformers` ignores `expansion_ratio`."""
    hidden, vocab = fields.count("hidden_size"), fields.count("vocab_size")
    intermediate = 4 * hidden
    layer = (
        *norms(hidden, "norm_1"),
        *linear("attn.Wqkv", 3 * hidden, hidden),
        *linear("attn.out_proj", hidden, hidden),
        *norms(hidden, "norm_2"),
        *linear("ffn.up_proj", intermediate, hidden),
        *linear("ffn.down_proj", hidden, intermediate),
    )
    head = () if fields.flag("tie_word_embeddings") else linear("lm_head", vocab, hidden)
    return (
        linear("transformer.wte", vocab, hidden),
        repeat_layer(fields, layer),
        (*norms(hidden, "transformer.norm_f"), *head),
    )
