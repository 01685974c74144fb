"""Parameters of mixtures of experts, by name and shape, in the order of `named_parameters()`.

`transformers` 5 keeps all experts of a layer in two fused weights. Dense families: `harness.facts.model_families`.
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
    linear,
    norms,
    qk_norms,
    repeat_layer,
)


def _fused_experts(f: ConfigFields, wide: int) -> Parameters:
    experts, hidden = f.count("num_local_experts"), f.count("hidden_size")
    return (
        Parameter("mlp.experts.gate_up_proj", (experts, 2 * wide, hidden)),
        Parameter("mlp.experts.down_proj", (experts, hidden, wide)),
    )


def mixtral(f: ConfigFields) -> Parts:
    """Mixtral: a router and experts in every layer."""
    hidden = f.count("hidden_size")
    router = linear("mlp.gate", f.count("num_local_experts"), hidden)
    experts = _fused_experts(f, f.count("intermediate_size"))
    layer = (*attention(f, False, False), *router, *experts, *norms(hidden, *TWO_NORMS))
    return decoder(f, repeat_layer(f, layer))


def _is_sparse_layer(f: ConfigFields) -> tuple[bool, ...]:
    """Which layers of a Qwen mixture have experts."""
    dense, every = f.numbers("mlp_only_layers"), f.count("decoder_sparse_step")
    return tuple(i not in dense and (i + 1) % every == 0 for i in range(f.num_layers))


def qwen2_moe(f: ConfigFields) -> Parts:
    """Qwen1.5-MoE and Qwen2-MoE: experts beside one shared expert with a gate of its own."""
    hidden, bias = f.count("hidden_size"), f.flag("qkv_bias")
    shared = f.count("shared_expert_intermediate_size")
    block = (
        *linear("mlp.gate", f.count("num_local_experts"), hidden),
        *_fused_experts(f, f.count("moe_intermediate_size")),
        *gated_mlp(hidden, shared, name="mlp.shared_expert"),
        *linear("mlp.shared_expert_gate", 1, hidden),
    )
    heads, ends = attention(f, bias, False), norms(hidden, *TWO_NORMS)
    sparse, dense = (*heads, *block, *ends), (*heads, *gated_mlp(hidden, f.count("intermediate_size")), *ends)
    return decoder(f, tuple(sparse if it_is else dense for it_is in _is_sparse_layer(f)))


def qwen3_moe(f: ConfigFields) -> Parts:
    """Qwen3-MoE: norms of queries and keys, experts without a shared one."""
    bias, hidden = f.flag("attention_bias"), f.count("hidden_size")
    block = (
        *_fused_experts(f, f.count("moe_intermediate_size")),
        *linear("mlp.gate", f.count("num_local_experts"), hidden),
    )
    heads, ends = (*attention(f, bias, bias), *qk_norms(f)), norms(hidden, *TWO_NORMS)
    sparse, dense = (*heads, *block, *ends), (*heads, *gated_mlp(hidden, f.count("intermediate_size")), *ends)
    return decoder(f, tuple(sparse if it_is else dense for it_is in _is_sparse_layer(f)))


def gpt_oss(f: ConfigFields) -> Parts:
    """gpt-oss: a sink a head, biases everywhere, expert weights stored input first."""
    hidden, wide, experts = f.count("hidden_size"), f.count("intermediate_size"), f.count("num_local_experts")
    bias = f.flag("attention_bias")
    layer = (
        Parameter("self_attn.sinks", (f.count("num_attention_heads"),)),
        *attention(f, bias, bias),
        *linear("mlp.router", experts, hidden, True),
        Parameter("mlp.experts.gate_up_proj", (experts, hidden, 2 * wide)),
        Parameter("mlp.experts.gate_up_proj_bias", (experts, 2 * wide)),
        Parameter("mlp.experts.down_proj", (experts, wide, hidden)),
        Parameter("mlp.experts.down_proj_bias", (experts, hidden)),
        *norms(hidden, *TWO_NORMS),
    )
    return decoder(f, repeat_layer(f, layer))


def deepseek(f: ConfigFields) -> Parts:
    """DeepSeek V2, V3 and R1: latent attention; the first layers dense, then experts beside shared ones."""
    hidden, wide = f.count("hidden_size"), f.count("moe_intermediate_size")
    block = (
        *_fused_experts(f, wide),
        *linear("mlp.gate", f.count("num_local_experts"), hidden),
        *gated_mlp(hidden, wide * f.count("n_shared_experts"), name="mlp.shared_experts"),
    )
    heads, ends = _latent_attention(f), norms(hidden, *TWO_NORMS)
    sparse, dense = (*heads, *block, *ends), (*heads, *gated_mlp(hidden, f.count("intermediate_size")), *ends)
    first = min(f.count("first_k_dense_replace", 0, minimum=0), f.num_layers)
    return decoder(f, (dense,) * first + (sparse,) * (f.num_layers - first))


def _latent_attention(f: ConfigFields) -> Parameters:
    hidden, heads, bias = f.count("hidden_size"), f.count("num_attention_heads"), f.flag("attention_bias")
    rope, latent, value = f.count("qk_rope_head_dim"), f.count("kv_lora_rank"), f.count("v_head_dim")
    width = heads * (f.count("qk_nope_head_dim") + rope)
    if f.get("q_lora_rank") is None:
        queries = linear("self_attn.q_proj", width, hidden)
    else:
        rank = f.count("q_lora_rank")
        queries = (
            *linear("self_attn.q_a_proj", rank, hidden, bias),
            *norms(rank, "self_attn.q_a_layernorm"),
            *linear("self_attn.q_b_proj", width, rank),
        )
    return (
        *queries,
        *linear("self_attn.kv_a_proj_with_mqa", latent + rope, hidden, bias),
        *norms(latent, "self_attn.kv_a_layernorm"),
        *linear("self_attn.kv_b_proj", heads * (f.count("qk_nope_head_dim") + value), latent),
        *linear("self_attn.o_proj", hidden, heads * value, bias),
    )
