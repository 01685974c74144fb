# SPDX-License-Identifier: Apache-2.0
"""Dense model families, parameter by parameter: one function a family, as `transformers` 5 builds it.

`tests/training/facts/test_model_families.py` compares every one of them with the real modules on the meta device. No
weights and no torch here. Families with experts: `harness.facts.moe_model_families`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

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
    qk_norms,
    repeat_layer,
    untied_head,
)


def llama(
    fields: ConfigFields,
    *,
    qkv_bias: bool | str = "attention_bias",
    out_bias: bool | str = "attention_bias",
    mlp_bias: bool | str = False,
    head_norms: Mapping[str, Any] | None = None,
    norm_names: Sequence[str] = TWO_NORMS,
) -> Parts:
    """Attention, a gated MLP and RMS norms in every layer. Of a bias the field that chooses it, or whether it is there;
    of `head_norms` those arguments of `qk_norms`, and the field that chooses them, if any, as `chosen_by`.
    """
    hidden, norms_of_heads = fields.count("hidden_size"), dict(head_norms or {})
    qkv, out, mlp = (fields.flag(b) if isinstance(b, str) else b for b in (qkv_bias, out_bias, mlp_bias))
    chosen_by = norms_of_heads.pop("chosen_by", None)
    has_norms = head_norms is not None and (chosen_by is None or fields.flag(chosen_by))
    layer = (
        *attention(fields, qkv, out),
        *(qk_norms(fields, **norms_of_heads) if has_norms else ()),
        *gated_mlp(hidden, fields.count("intermediate_size"), mlp),
        *norms(hidden, *norm_names),
    )
    return decoder(fields, repeat_layer(fields, layer))


def phi(fields: ConfigFields) -> Parts:
    """Phi 1, 1.5 and 2: biases everywhere, one layer norm a layer."""
    hidden, intermediate = fields.count("hidden_size"), fields.count("intermediate_size")
    vocab = fields.count("vocab_size")
    queries, keys = fields.count("num_attention_heads") * fields.head_dim, fields.kv_heads * fields.head_dim
    head_norms = ("self_attn.q_layernorm", "self_attn.k_layernorm") if fields.flag("qk_layernorm") else ()
    layer = (
        *linear("self_attn.q_proj", queries, hidden, True),
        *linear("self_attn.k_proj", keys, hidden, True),
        *linear("self_attn.v_proj", keys, hidden, True),
        *linear("self_attn.dense", hidden, queries, True),
        *(parameter for name in head_norms for parameter in layer_norm(fields.head_dim, name)),
        *linear("mlp.fc1", intermediate, hidden, True),
        *linear("mlp.fc2", hidden, intermediate, True),
        *layer_norm(hidden, "input_layernorm"),
    )
    # A tied head has a bias, too.
    head = linear("lm_head", vocab, hidden, True)[1 if fields.flag("tie_word_embeddings") else 0 :]
    after = (*layer_norm(hidden, "model.final_layernorm"), *head)
    return linear("model.embed_tokens", vocab, hidden), repeat_layer(fields, layer), after


def phi3(fields: ConfigFields) -> Parts:
    """Phi 3: fused queries, keys and values, and a fused gate."""
    hidden, intermediate = fields.count("hidden_size"), fields.count("intermediate_size")
    queries = fields.count("num_attention_heads") * fields.head_dim
    layer = (
        *linear("self_attn.o_proj", hidden, queries),
        *linear("self_attn.qkv_proj", queries + 2 * fields.kv_heads * fields.head_dim, hidden),
        *linear("mlp.gate_up_proj", 2 * intermediate, hidden),
        *linear("mlp.down_proj", hidden, intermediate),
        *norms(hidden, *TWO_NORMS),
    )
    return decoder(fields, repeat_layer(fields, layer))


def gpt2(fields: ConfigFields) -> Parts:
    """GPT-2: learned positions, fused queries, keys and values, layer norms."""
    hidden = fields.count("hidden_size")
    intermediate = fields.count("n_inner", 4 * hidden)

    def conv(
        name: str, num_inputs: int, num_outputs: int
    ) -> Parameters:  # transformers' Conv1D keeps its weight transposed
        return Parameter(f"{name}.weight", (num_inputs, num_outputs)), Parameter(f"{name}.bias", (num_outputs,))

    layer = (
        *layer_norm(hidden, "ln_1"),
        *conv("attn.c_attn", hidden, 3 * hidden),
        *conv("attn.c_proj", hidden, hidden),
        *layer_norm(hidden, "ln_2"),
        *conv("mlp.c_fc", hidden, intermediate),
        *conv("mlp.c_proj", intermediate, hidden),
    )
    vocab = fields.count("vocab_size")
    before = (
        *linear("transformer.wte", vocab, hidden),
        *linear("transformer.wpe", fields.count("n_positions"), hidden),
    )
    return before, repeat_layer(fields, layer), (*layer_norm(hidden, "transformer.ln_f"), *untied_head(fields))


def gpt_neox(fields: ConfigFields) -> Parts:
    """GPT-NeoX and Pythia: fused queries, keys and values, two layer norms."""
    hidden, intermediate = fields.count("hidden_size"), fields.count("intermediate_size")
    vocab = fields.count("vocab_size")
    bias = fields.flag("attention_bias")
    layer = (
        *layer_norm(hidden, "input_layernorm"),
        *layer_norm(hidden, "post_attention_layernorm"),
        *linear("attention.query_key_value", 3 * hidden, hidden, bias),
        *linear("attention.dense", hidden, hidden, bias),
        *linear("mlp.dense_h_to_4h", intermediate, hidden, True),
        *linear("mlp.dense_4h_to_h", hidden, intermediate, True),
    )
    after = (*layer_norm(hidden, "gpt_neox.final_layer_norm"), *untied_head(fields))
    return linear("gpt_neox.embed_in", vocab, hidden), repeat_layer(fields, layer), after


def falcon(fields: ConfigFields) -> Parts:
    """Falcon 1B to 180B: a fused projection of three layouts, one or two layer norms."""
    hidden, vocab, bias = fields.count("hidden_size"), fields.count("vocab_size"), fields.flag("bias")
    intermediate = fields.count("ffn_hidden_size", 4 * hidden)
    layer = (
        *linear("self_attention.query_key_value", _falcon_qkv(fields), hidden, bias),
        *linear("self_attention.dense", hidden, hidden, bias),
        *linear("mlp.dense_h_to_4h", intermediate, hidden, bias),
        *linear("mlp.dense_4h_to_h", hidden, intermediate, bias),
        *(parameter for name in _falcon_norms(fields) for parameter in layer_norm(hidden, name)),
    )
    after = (*layer_norm(hidden, "transformer.ln_f"), *untied_head(fields))
    return linear("transformer.word_embeddings", vocab, hidden), repeat_layer(fields, layer), after


def _falcon_qkv(fields: ConfigFields) -> int:
    """Rows of the fused projection: grouped keys (40B), one key head (7B), or as many as there are queries (1B)."""
    if fields.flag("new_decoder_architecture"):
        return (2 * fields.kv_heads + fields.count("num_attention_heads")) * fields.head_dim
    return (
        fields.count("hidden_size") + 2 * fields.head_dim
        if fields.flag("multi_query")
        else 3 * fields.count("hidden_size")
    )


def _falcon_norms(fields: ConfigFields) -> tuple[str, ...]:
    is_new = fields.flag("new_decoder_architecture")
    has_two = fields.count("num_ln_in_parallel_attn", 2 if is_new else 1) == 2
    after = () if fields.flag("parallel_attn") else ("post_attention_layernorm",)
    return (*after, *(("ln_attn", "ln_mlp") if has_two else ("input_layernorm",)))


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
    return before, repeat_layer(fields, layer), (*layer_norm(hidden, "transformer.ln_f"), *untied_head(fields))


def opt(fields: ConfigFields) -> Parts:
    """OPT from 1.3B on, and 125M: learned positions (two more rows than there are positions), biases everywhere."""
    hidden, vocab = fields.count("hidden_size"), fields.count("vocab_size")
    intermediate = fields.count("intermediate_size")
    layer = (
        *(p for n in ("k", "v", "q", "out") for p in linear(f"self_attn.{n}_proj", hidden, hidden, True)),
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
    return before, repeat_layer(fields, layer), untied_head(fields)


def mpt(fields: ConfigFields) -> Parts:
    """MPT: fused queries, keys and values, no biases, no positions; `transformers` ignores `expansion_ratio`."""
    hidden, vocab = fields.count("hidden_size"), fields.count("vocab_size")
    layer = (
        *norms(hidden, "norm_1"),
        *linear("attn.Wqkv", 3 * hidden, hidden),
        *linear("attn.out_proj", hidden, hidden),
        *norms(hidden, "norm_2"),
        *linear("ffn.up_proj", 4 * hidden, hidden),
        *linear("ffn.down_proj", hidden, 4 * hidden),
    )
    return (
        linear("transformer.wte", vocab, hidden),
        repeat_layer(fields, layer),
        (*norms(hidden, "transformer.norm_f"), *untied_head(fields)),
    )
