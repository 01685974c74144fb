# SPDX-License-Identifier: Apache-2.0
"""AutoTP: models of which it leaves most whole, and models that it does not train right."""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.facts.tensor_parallel_plans import SCALED_EMBEDDINGS
from harness.gates.registry import Cite, Context, Findings, Fix, gate
from harness.units import format_bytes

if TYPE_CHECKING:
    from harness.plan.weights.tensor_shard import TensorPlanChoice, TensorShard

_DEGREE = "parallel.tensor_parallel_size"
_HEAD = "deepspeed.tensor_parallel.vocab_parallel_lm_head"
_PLANS = ("deepspeed.tensor_parallel.preset_model", "deepspeed.tensor_parallel.partition_config")


def _choice_of(ctx: Context) -> TensorPlanChoice:
    from harness.plan.weights.tensor_shard import TensorPlanChoice

    return TensorPlanChoice.from_block(ctx.run.spec.deepspeed.get("tensor_parallel"))


def _shard_of(ctx: Context) -> TensorShard | None:
    """The division of the run's model, where its family is known and DeepSpeed builds the engine."""
    from harness.plan.weights.tensor_shard import shard_model

    if ctx.model is None:
        return None
    shard = shard_model(ctx.model, ctx.autotp_size, _choice_of(ctx))
    return shard if shard.is_known and not shard.refusal else None


def _has_own_plan(ctx: Context) -> bool:
    """Has the run a preset or a partition plan, which other gates judge?"""
    choice = _choice_of(ctx)
    return bool(choice.preset) or choice.partition is not None


def _fix_degree(ctx: Context) -> Fix:
    """The fix that ends AutoTP, with the plan that only it reads."""
    effect = "trains data parallel; ZeRO stage 3 shards every weight over all ranks"
    return Fix(f"set {ctx.key(_DEGREE)} to 1", {_DEGREE: 1, **dict.fromkeys(_PLANS)}, effect=effect)


def _describe_bytes(shard: TensorShard) -> str:
    """The weights of one tensor rank in 16 bits, compared with an even share."""
    local = sum(parameter.numel for parameter in shard.local_parameters())
    even = shard.model.num_parameters // shard.degree
    sizes = format_bytes(2 * local), format_bytes(2 * even)
    return f"{sizes[0]} of weights in 16 bits on each tensor rank, where an even part would be {sizes[1]}"


@gate(
    "TP022 layers-whole-under-autotp",
    severity="warning",
    cites=Cite("module_inject/auto_tp.py", "With partition_config, rely only on explicit specs and skip unmatched"),
    since="0.19.6",
    needs=("model facts",),
    when=lambda ctx: ctx.autotp_size > 1,
)
def layers_whole(ctx: Context) -> Findings:
    """A model whose layers AutoTP leaves whole.

    With tensor parallelism and neither a preset nor a `partition_config`, the plan that `transformers` ships with the
    model names its layers. That of gpt-oss names the head alone.

    Why: DeepSpeed follows that plan and shards nothing else: every rank of the tensor group holds all attention weights
    and all experts, and computes them for the same samples. There is no warning, and the losses are right. Counted on
    0.19.8 with transformers 5.24 on two ranks: `lm_head.weight` is halved, everything else is whole. A preset does not
    help: with attention sharded, the first forward pass fails at the sinks, one for each head, which stay whole (run).

    Example:
        model.name_or_path: openai/gpt-oss-120b
        parallel.tensor_parallel_size: 8
    """
    shard = _shard_of(ctx)
    if shard is None or shard.divides_layers or _has_own_plan(ctx):
        return
    family = shard.model.family
    part = "nothing" if shard.head == "whole" else "the head alone"
    yield ctx.finding(
        f"AutoTP shards {part} of a `{family}` model: each of {shard.degree} tensor ranks keeps every layer",
        _DEGREE,
        label=f"{shard.degree} ranks repeat the same work",
        related=[("model.name_or_path", f"a `{family}` model"), ("model.config", f"a `{family}` model")],
        notes=[_describe_bytes(shard), "DeepSpeed says nothing; the losses are right"],
        fix=_fix_degree(ctx),
    )


@gate(
    "TP023 experts-whole-under-autotp",
    severity="warning",
    cites=Cite("module_inject/auto_tp.py", "AutoTP does not shard high-dimensional weights", since="0.19.8"),
    since="0.18.6",
    needs=("model facts",),
    when=lambda ctx: ctx.autotp_size > 1,
)
def experts_whole(ctx: Context) -> Findings:
    """A mixture of experts of which AutoTP shards all but the experts.

    With tensor parallelism the model has no experts, or AutoTP shards them.

    Why: `transformers` 5 keeps all experts of a layer in two weights of three dimensions, which AutoTP does not shard,
    whatever the preset or the `partition_config` names: every rank of the tensor group holds all experts and computes
    them for the same tokens. Counted on 0.19.8 with the preset `mixtral` on a Mixtral and with a `partition_config` on
    a Qwen3-MoE: attention is halved on two ranks, the experts are whole. The losses are right. With Mixtral-8x7B over 8
    tensor ranks 45.5 of 46.7 billion parameters stay on every rank.

    Example:
        model.name_or_path: mistralai/Mixtral-8x7B-v0.1
        parallel.tensor_parallel_size: 8
        deepspeed.tensor_parallel.preset_model: mixtral
    """
    shard = _shard_of(ctx)
    if shard is None or not shard.model.experts or not shard.divides_layers or shard.splits_latent_keys:
        return
    experts = sum(p.numel for p in shard.model.parameters() if ".experts." in p.name)
    yield ctx.finding(
        f"AutoTP leaves the experts whole, {experts / shard.model.num_parameters:.0%} of the model, on each of"
        f" {shard.degree} tensor ranks",
        _DEGREE,
        label="shards attention, not the experts",
        related=[("model.name_or_path", f"a `{shard.model.family}` model")],
        notes=[_describe_bytes(shard), "every rank computes all experts for the same tokens; the losses are right"],
        fix=_fix_degree(ctx),
    )


@gate(
    "TP024 falcon-under-autotp",
    upstream="crashes",
    since="0.19.6",
    needs=("model facts",),
    when=lambda ctx: ctx.autotp_size > 1,
)
def falcon(ctx: Context) -> Findings:
    """Falcon models, whose forward pass AutoTP breaks.

    With tensor parallelism the model is not a Falcon with one key-value head (7B), with parallel branches and no biases
    (40B, 180B), or with ALiBi (RW).

    Why: DeepSpeed shards a Falcon by the names of its layers and builds the engine, then the first forward pass fails
    (run on 0.19.8 with transformers 5.24, small models of each kind on two ranks). 7B: the one key-value head is cut
    together with the queries, "shape ... is invalid for input of size". 40B and 180B: the outputs of both branches are
    added in place, "Output 0 of RowParallel is a view and is being modified inplace". RW: ALiBi's biases are those of
    all heads, "The size of tensor a (3) must match the size of tensor b (6)".

    Example:
        model.name_or_path: tiiuae/falcon-40b
        parallel.tensor_parallel_size: 8
    """
    shard = _shard_of(ctx)
    if shard is None or shard.model.family != "falcon":
        return
    if shard.fails_in_forward or (shard.divides_layers and ctx.model_config.get("alibi") is True):
        yield ctx.finding(
            f"AutoTP over {shard.degree} ranks breaks the forward pass of this Falcon",
            _DEGREE,
            label="fails in the first step",
            related=[("model.name_or_path", "the model"), ("model.config", "the model")],
            notes=["the engine is built; the first forward pass ends in a RuntimeError about shapes or views"],
            fix=_fix_degree(ctx),
        )


@gate(
    "TP025 latent-keys-drift-apart",
    cites=Cite("module_inject/autotp_config.py", "MLA uses compressed KV, skip low-rank projections"),
    since="0.18.6",
    needs=("model facts",),
    when=lambda ctx: ctx.autotp_size > 1,
)
def partial_latent_key_gradients(ctx: Context) -> Findings:
    """Latent attention whose heads are split.

    With tensor parallelism a DeepSeek model has neither the preset `deepseek_v2` nor a `partition_config` that shards
    its `kv_b_proj`.

    Why: All heads of latent attention share one rotary key, which `kv_a_proj_with_mqa` computes. With the heads split,
    each rank computes the part of that key's gradient that its own heads give, and nothing sums the parts: the weights
    of the projection, and of everything below it down to the embedding, silently get another gradient on each rank and
    drift apart. Run on 0.19.8 with a small DeepSeek-V3 on two ranks: the loss is that of one rank, the gradients of
    `kv_a_proj_with_mqa` and of the embedding are off by up to two per cent, in the first step. Summing them
    (`grad_allreduce`) does not help, since the rest of that gradient is whole already. Models without `q_lora_rank`
    (V2-Lite) fail in the first forward pass instead.

    Example:
        model.name_or_path: deepseek-ai/DeepSeek-V3
        parallel.tensor_parallel_size: 8
        deepspeed.tensor_parallel.preset_model: deepseek_v2
    """
    shard = _shard_of(ctx)
    if shard is not None and shard.splits_latent_keys:
        yield ctx.finding(
            f"each of {shard.degree} tensor ranks has a part of the gradient of the shared rotary key, none the sum",
            _DEGREE,
            label="the ranks' copies drift apart",
            related=[("model.name_or_path", f"a `{shard.model.family}` model")],
            notes=["DeepSpeed checks and reports nothing; the losses stay plausible"],
            fix=_fix_degree(ctx),
        )


@gate(
    "TP026 vocabulary-parallel-scaled-embedding",
    upstream="raises",
    cites=Cite("module_inject/layers.py", "Vocabulary-parallel sharding does not support the custom embedding forward"),
    since="0.19.8",
    needs=("model facts",),
    when=lambda ctx: ctx.autotp_size > 1 and ctx.ds("tensor_parallel.vocab_parallel_lm_head") is True,
)
def scaled_embedding(ctx: Context) -> Findings:
    """A vocabulary-parallel head that is tied to an embedding with a forward of its own.

    With `tensor_parallel.vocab_parallel_lm_head: true` the model is not a Gemma or a Gemma 2 with tied embeddings.

    Why: Their embedding multiplies by the root of the width, in a class that DeepSpeed does not replace:
    "Vocabulary-parallel sharding does not support the custom embedding forward of GemmaTextScaledWordEmbedding", a
    NotImplementedError at initialisation (run on 0.19.8 with transformers 5.24). Left out, the key means what the model
    allows: head and embedding stay whole, with a warning.

    Example:
        model.name_or_path: google/gemma-2-9b
        parallel.tensor_parallel_size: 8
        deepspeed.tensor_parallel.vocab_parallel_lm_head: true
    """
    model = ctx.model
    if model is not None and model.tied and model.family in SCALED_EMBEDDINGS:
        yield ctx.finding(
            f"{ctx.key(_HEAD)} does not work with the embedding of `{model.family}` models, which scales its output",
            _HEAD,
            related=[("model.name_or_path", f"a `{model.family}` model"), (_DEGREE, "the head is split here")],
            notes=["DeepSpeed raises NotImplementedError at initialisation"],
            fix=ctx.fix_to_remove(_HEAD, effect="head and embedding stay whole on each tensor rank"),
        )
