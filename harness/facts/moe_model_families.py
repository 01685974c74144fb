# SPDX-License-Identifier: Apache-2.0
"""Parameters of mixtures of experts, by name and shape, in the order of `named_parameters()`.

`transformers` 5 keeps all experts of a layer in two fused weights. Dense families: `dense_model_families`.
"""

from __future__ import annotations

from collections.abc import Callable

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
)

SparseLayers = Callable[[ConfigFields], tuple[bool, ...]]
"""Says of each layer whether it has experts."""


def fused_experts(fields: ConfigFields, intermediate: int) -> Parameters:
    """All experts of a layer in two weights: gate and up, down."""
    experts, hidden = fields.count("num_local_experts"), fields.count("hidden_size")
    return (
        Parameter("mlp.experts.gate_up_proj", (experts, 2 * intermediate, hidden)),
        Parameter("mlp.experts.down_proj", (experts, hidden, intermediate)),
    )


def routed_experts(fields: ConfigFields) -> Parameters:
    """DeepSeek's block: experts, their router, and shared experts as one wide MLP."""
    hidden, width = fields.count("hidden_size"), fields.count("moe_intermediate_size")
    return (
        *fused_experts(fields, width),
        *linear("mlp.gate", fields.count("num_local_experts"), hidden),
        *gated_mlp(hidden, width * fields.count("n_shared_experts"), name="mlp.shared_experts"),
    )


def mixture(
    fields: ConfigFields, heads: Parameters, experts: Parameters, find_sparse: SparseLayers, *, mlp_bias: bool = False
) -> Parts:
    """A decoder whose layers have these attention heads, and experts or a gated MLP."""
    hidden = fields.count("hidden_size")
    ends = norms(hidden, *TWO_NORMS)
    dense = (*heads, *gated_mlp(hidden, fields.count("intermediate_size"), mlp_bias), *ends)
    sparse = (*heads, *experts, *ends)
    return decoder(fields, tuple(sparse if is_sparse else dense for is_sparse in find_sparse(fields)))


def is_sparse_layer(fields: ConfigFields) -> tuple[bool, ...]:
    """Does this layer of a Qwen mixture have experts?"""
    dense, every = fields.numbers("mlp_only_layers"), fields.count("decoder_sparse_step")
    return tuple(index not in dense and (index + 1) % every == 0 for index in range(fields.num_layers))


def qwen2_moe(fields: ConfigFields) -> Parts:
    """Qwen1.5-MoE and Qwen2-MoE: experts, and one shared expert with a gate of its own."""
    heads = attention(fields, fields.flag("qkv_bias"), False)
    return mixture(fields, heads, _gated_shared_expert(fields), is_sparse_layer)


def _gated_shared_expert(fields: ConfigFields) -> Parameters:
    hidden = fields.count("hidden_size")
    return (
        *linear("mlp.gate", fields.count("num_local_experts"), hidden),
        *fused_experts(fields, fields.count("moe_intermediate_size")),
        *gated_mlp(hidden, fields.count("shared_expert_intermediate_size"), name="mlp.shared_expert"),
        *linear("mlp.shared_expert_gate", 1, hidden),
    )


def qwen3_moe(fields: ConfigFields) -> Parts:
    """Qwen3-MoE: norms of queries and keys, experts without a shared one."""
    bias, hidden = fields.flag("attention_bias"), fields.count("hidden_size")
    block = (
        *fused_experts(fields, fields.count("moe_intermediate_size")),
        *linear("mlp.gate", fields.count("num_local_experts"), hidden),
    )
    heads = (*attention(fields, bias, bias), *qk_norms(fields))
    return mixture(fields, heads, block, is_sparse_layer)


def deepseek(fields: ConfigFields) -> Parts:
    """DeepSeek V2, V3 and R1: latent attention; the first layers dense, then experts and shared experts."""
    return mixture(fields, latent_attention(fields), routed_experts(fields), follows_dense)


def follows_dense(fields: ConfigFields) -> tuple[bool, ...]:
    """Does this layer come after the `first_k_dense_replace` dense ones?"""
    first = fields.count("first_k_dense_replace", 0, minimum=0)
    return tuple(index >= first for index in range(fields.num_layers))


def latent_attention(fields: ConfigFields) -> Parameters:
    """Queries through a low rank, keys and values through another, which the heads share."""
    hidden, heads = fields.count("hidden_size"), fields.count("num_attention_heads")
    bias = fields.flag("attention_bias")
    rope, latent, value = fields.count("qk_rope_head_dim"), fields.count("kv_lora_rank"), fields.count("v_head_dim")
    width = heads * (fields.count("qk_nope_head_dim") + rope)
    if fields.get("q_lora_rank") is None:
        queries = linear("self_attn.q_proj", width, hidden)
    else:
        rank = fields.count("q_lora_rank")
        queries = (
            *linear("self_attn.q_a_proj", rank, hidden, bias),
            *norms(rank, "self_attn.q_a_layernorm"),
            *linear("self_attn.q_b_proj", width, rank),
        )
    return (
        *queries,
        *linear("self_attn.kv_a_proj_with_mqa", latent + rope, hidden, bias),
        *norms(latent, "self_attn.kv_a_layernorm"),
        *linear("self_attn.kv_b_proj", heads * (fields.count("qk_nope_head_dim") + value), latent),
        *linear("self_attn.o_proj", hidden, heads * value, bias),
    )


def glm4_moe(fields: ConfigFields) -> Parts:
    """GLM-4.5 and 4.6 without the layer that predicts a second token: grouped-query attention, DeepSeek's experts."""
    heads = (
        *attention(fields, fields.flag("attention_bias"), False),
        *(qk_norms(fields) if fields.flag("use_qk_norm") else ()),
    )
    return mixture(fields, heads, routed_experts(fields), follows_dense)


def deepseek_v32(fields: ConfigFields) -> Parts:
    """DeepSeek V3.2: V3 with an indexer in every layer, which chooses the tokens that attention sees."""
    hidden = fields.count("hidden_size")
    index_heads, index_width = fields.count("index_n_heads"), fields.count("index_head_dim")
    heads = (
        *latent_attention(fields),
        *linear("self_attn.indexer.wq_b", index_heads * index_width, fields.count("q_lora_rank")),
        *linear("self_attn.indexer.wk", index_width, hidden),
        *layer_norm(index_width, "self_attn.indexer.k_norm"),
        *linear("self_attn.indexer.weights_proj", index_heads, hidden),
    )
    return mixture(fields, heads, routed_experts(fields), follows_dense)


def ernie_moe(fields: ConfigFields) -> Parts:
    """ERNIE 4.5 with experts: a correction a router keeps as a parameter; experts between two layers, every so many."""
    hidden, experts, bias = fields.count("hidden_size"), fields.count("num_local_experts"), fields.flag("use_bias")
    width, shared = fields.count("moe_intermediate_size"), fields.count("n_shared_experts", 0, minimum=0)
    block = (
        *linear("mlp.gate", experts, hidden),
        Parameter("mlp.gate.moe_statics.e_score_correction_bias", (1, experts)),
        *fused_experts(fields, width),
        *(gated_mlp(hidden, width * shared, bias, name="mlp.shared_experts") if shared else ()),
    )
    before, layers, after = mixture(fields, attention(fields, bias, bias), block, _is_ernie_sparse, mlp_bias=bias)
    return before, layers, (*after, Parameter("lm_head.bias", (fields.count("vocab_size"),))) if bias else after


def _is_ernie_sparse(fields: ConfigFields) -> tuple[bool, ...]:
    first, every = fields.count("moe_layer_start_index", 0, minimum=0), fields.count("moe_layer_interval")
    end = fields.get("moe_layer_end_index")
    last = fields.num_layers - 1 if end in (None, -1) else fields.count("moe_layer_end_index", minimum=0)
    return tuple(first <= index <= last and (index + 1) % every == 0 for index in range(fields.num_layers))


def llama4(fields: ConfigFields) -> Parts:
    """The language model of Llama 4: experts and a shared one in every layer (Scout) or in every other (Maverick)."""
    hidden, experts = fields.count("hidden_size"), fields.count("num_local_experts")
    bias = fields.flag("attention_bias")
    width, every = fields.count("moe_intermediate_size"), fields.count("interleave_moe_layer_step")
    heads, ends = attention(fields, bias, bias), norms(hidden, *TWO_NORMS)
    block = (
        Parameter("feed_forward.experts.gate_up_proj", (experts, hidden, 2 * width)),
        Parameter("feed_forward.experts.down_proj", (experts, width, hidden)),
        *linear("feed_forward.router", experts, hidden),
        *gated_mlp(hidden, width, name="feed_forward.shared_expert"),
    )
    sparse = (*heads, *block, *ends)
    dense = (*heads, *gated_mlp(hidden, fields.count("intermediate_size"), name="feed_forward"), *ends)
    chosen = fields.numbers("moe_layers") or frozenset(range(every - 1, fields.num_layers, every))
    return decoder(fields, tuple(sparse if index in chosen else dense for index in range(fields.num_layers)))


def qwen3_next(fields: ConfigFields) -> Parts:
    """Qwen3-Next: three layers of four with linear attention, gated queries in the others; experts and a shared one."""
    hidden = fields.count("hidden_size")
    block = _gated_shared_expert(fields)
    mlp, ends = gated_mlp(hidden, fields.count("intermediate_size")), norms(hidden, *TWO_NORMS)
    kinds = {
        (is_linear, is_sparse): (
            *(linear_attention(fields) if is_linear else _gated_attention(fields)),
            *(block if is_sparse else mlp),
            *ends,
        )
        for is_linear in (False, True)
        for is_sparse in (False, True)
    }
    return decoder(
        fields, tuple(kinds[pair] for pair in zip(is_linear_layer(fields), is_sparse_layer(fields), strict=True))
    )


def is_linear_layer(fields: ConfigFields) -> tuple[bool, ...]:
    """Has this layer linear attention? By `layer_types`, else all but every fourth."""
    types = fields.get("layer_types")
    if isinstance(types, list | tuple) and len(types) == fields.num_layers:
        return tuple(kind == "linear_attention" for kind in types)
    every = fields.count("full_attention_interval", 4)
    return tuple((index + 1) % every != 0 for index in range(fields.num_layers))


def _gated_attention(fields: ConfigFields) -> Parameters:
    """Attention whose query projection holds a gate of the output, too."""
    hidden, width, bias = fields.count("hidden_size"), fields.head_dim, fields.flag("attention_bias")
    queries, keys = fields.count("num_attention_heads") * width, fields.kv_heads * width
    return (
        *linear("self_attn.q_proj", 2 * queries, hidden, bias),
        *linear("self_attn.k_proj", keys, hidden, bias),
        *linear("self_attn.v_proj", keys, hidden, bias),
        *linear("self_attn.o_proj", hidden, queries, bias),
        *qk_norms(fields),
    )


def linear_attention(fields: ConfigFields) -> Parameters:
    """A gated delta net: fused projections, a short convolution, a decay and a norm a head."""
    hidden, heads = fields.count("hidden_size"), fields.count("linear_num_value_heads")
    values = heads * fields.count("linear_value_head_dim")
    keys = fields.count("linear_num_key_heads") * fields.count("linear_key_head_dim")
    return (
        Parameter("linear_attn.dt_bias", (heads,)),
        Parameter("linear_attn.A_log", (heads,)),
        Parameter("linear_attn.conv1d.weight", (2 * keys + values, 1, fields.count("linear_conv_kernel_dim"))),
        *linear("linear_attn.in_proj_qkvz", 2 * keys + 2 * values, hidden),
        *linear("linear_attn.in_proj_ba", 2 * heads, hidden),
        *norms(fields.count("linear_value_head_dim"), "linear_attn.norm"),
        *linear("linear_attn.out_proj", hidden, values),
    )
