# SPDX-License-Identifier: Apache-2.0
"""Parameters of mixtures of experts, by name and shape, in the order of `named_parameters()`.

`transformers` 5 keeps all experts of a layer in two fused weights. Dense families: `dense_model_families`.
"""

from __future__ import annotations

from harness.facts.model_parts import (
    TWO_NORMS,
    ConfigFields,
    Layers,
    Parameter,
    Parameters,
    Parts,
    attention,
    decoder,
    gated_mlp,
    linear,
    norms,
    qk_norms,
    repeat_layer,
)


def fused_experts(fields: ConfigFields, intermediate: int) -> Parameters:
    """All experts of a layer in two weights: gate and up, down."""
    experts, hidden = fields.count("num_local_experts"), fields.count("hidden_size")
    return (
        Parameter("mlp.experts.gate_up_proj", (experts, 2 * intermediate, hidden)),
        Parameter("mlp.experts.down_proj", (experts, hidden, intermediate)),
    )


def mixtral(fields: ConfigFields) -> Parts:
    """Mixtral: a router and experts in every layer."""
    hidden = fields.count("hidden_size")
    router = linear("mlp.gate", fields.count("num_local_experts"), hidden)
    experts = fused_experts(fields, fields.count("intermediate_size"))
    layer = (*attention(fields, False, False), *router, *experts, *norms(hidden, *TWO_NORMS))
    return decoder(fields, repeat_layer(fields, layer))


def is_sparse_layer(fields: ConfigFields) -> tuple[bool, ...]:
    """Does this layer of a Qwen mixture have experts?"""
    dense, every = fields.numbers("mlp_only_layers"), fields.count("decoder_sparse_step")
    return tuple(index not in dense and (index + 1) % every == 0 for index in range(fields.num_layers))


def qwen2_moe(fields: ConfigFields) -> Parts:
    """Qwen1.5-MoE and Qwen2-MoE: experts, and one shared expert with a gate of its own."""
    hidden, bias = fields.count("hidden_size"), fields.flag("qkv_bias")
    shared = fields.count("shared_expert_intermediate_size")
    block = (
        *linear("mlp.gate", fields.count("num_local_experts"), hidden),
        *fused_experts(fields, fields.count("moe_intermediate_size")),
        *gated_mlp(hidden, shared, name="mlp.shared_expert"),
        *linear("mlp.shared_expert_gate", 1, hidden),
    )
    heads, ends = attention(fields, bias, False), norms(hidden, *TWO_NORMS)
    sparse, dense = (*heads, *block, *ends), (*heads, *gated_mlp(hidden, fields.count("intermediate_size")), *ends)
    return decoder(fields, tuple(sparse if is_sparse else dense for is_sparse in is_sparse_layer(fields)))


def qwen3_moe(fields: ConfigFields) -> Parts:
    """Qwen3-MoE: norms of queries and keys, experts without a shared one."""
    bias, hidden = fields.flag("attention_bias"), fields.count("hidden_size")
    block = (
        *fused_experts(fields, fields.count("moe_intermediate_size")),
        *linear("mlp.gate", fields.count("num_local_experts"), hidden),
    )
    heads, ends = (*attention(fields, bias, bias), *qk_norms(fields)), norms(hidden, *TWO_NORMS)
    sparse, dense = (*heads, *block, *ends), (*heads, *gated_mlp(hidden, fields.count("intermediate_size")), *ends)
    return decoder(fields, tuple(sparse if is_sparse else dense for is_sparse in is_sparse_layer(fields)))


def gpt_oss(fields: ConfigFields) -> Parts:
    """gpt-oss: a sink a head, biases everywhere, expert weights stored input first."""
    hidden, intermediate, experts = (
        fields.count("hidden_size"),
        fields.count("intermediate_size"),
        fields.count("num_local_experts"),
    )
    bias = fields.flag("attention_bias")
    layer = (
        Parameter("self_attn.sinks", (fields.count("num_attention_heads"),)),
        *attention(fields, bias, bias),
        *linear("mlp.router", experts, hidden, True),
        Parameter("mlp.experts.gate_up_proj", (experts, hidden, 2 * intermediate)),
        Parameter("mlp.experts.gate_up_proj_bias", (experts, 2 * intermediate)),
        Parameter("mlp.experts.down_proj", (experts, intermediate, hidden)),
        Parameter("mlp.experts.down_proj_bias", (experts, hidden)),
        *norms(hidden, *TWO_NORMS),
    )
    return decoder(fields, repeat_layer(fields, layer))


def deepseek(fields: ConfigFields) -> Parts:
    """DeepSeek V2, V3 and R1: latent attention; the first layers dense, then experts and shared experts."""
    hidden, intermediate = fields.count("hidden_size"), fields.count("moe_intermediate_size")
    block = (
        *fused_experts(fields, intermediate),
        *linear("mlp.gate", fields.count("num_local_experts"), hidden),
        *gated_mlp(hidden, intermediate * fields.count("n_shared_experts"), name="mlp.shared_experts"),
    )
    heads, ends = latent_attention(fields), norms(hidden, *TWO_NORMS)
    sparse, dense = (*heads, *block, *ends), (*heads, *gated_mlp(hidden, fields.count("intermediate_size")), *ends)
    return decoder(fields, leading_dense(fields, dense, sparse))


def leading_dense(fields: ConfigFields, dense: Parameters, sparse: Parameters) -> Layers:
    """`first_k_dense_replace` dense layers, and sparse ones after them."""
    first = min(fields.count("first_k_dense_replace", 0, minimum=0), fields.num_layers)
    return (dense,) * first + (sparse,) * (fields.num_layers - first)


def latent_attention(fields: ConfigFields) -> Parameters:
    """Queries through a low rank, keys and values through another, which the heads share."""
    hidden, heads, bias = (
        fields.count("hidden_size"),
        fields.count("num_attention_heads"),
        fields.flag("attention_bias"),
    )
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
