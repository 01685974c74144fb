# SPDX-License-Identifier: Apache-2.0
"""Sequence parallelism: groups, heads, lengths and what it goes with."""

from __future__ import annotations

from functools import partial

from harness.gates.dtypes import grad_accum_dtype, model_dtype
from harness.gates.registry import Cite, Context, Findings, Fix, gate, spec_gate

_DEGREE = "parallel.sequence_parallel_size"
_DATA_PARALLEL_SIZE = "deepspeed.data_parallel_size"


_ulysses_gate = partial(gate, since="0.17.0")


@gate(
    "SQ010 sequence-parallelism-before-0-17",
    cites=(
        Cite("utils/groups.py", "_get_sequence_parallel_group"),
        Cite(
            "__init__.py",
            'if "sequence_parallel_size" in config and "data_parallel_size" in config:',
            since="0.15.0",
        ),
    ),
    until="0.16.9",
    unseen="needs an older DeepSpeed",
)
def sequence_parallelism_before_0_17(ctx: Context) -> Findings:
    """Sequence parallelism on a release without it.

    `parallel.sequence_parallel_size` above 1 on DeepSpeed 0.16.9 and older.

    Why: The attention for Hugging Face models and the data loader adapter came with 0.17.0. Older releases have
    neither, and make no groups from this key alone: every rank trains data parallel.

    Example:
        parallel.sequence_parallel_size: 2

    Use instead:
        zero.stage: 3
    """
    if ctx.sequence_parallel_size > 1 and (ctx.run.kind == "spec" or not ctx.has_key("data_parallel_size")):
        yield ctx.finding(
            f"DeepSpeed {ctx.target.text} has no sequence parallelism for Hugging Face models",
            _DEGREE,
            label="needs 0.17.0",
            fix=Fix(
                f"upgrade to DeepSpeed 0.17.0 or newer, or set {ctx.key(_DEGREE)} to 1",
                {_DEGREE: 1},
                effect="whole sequences on every rank",
            ),
        )


def _is_degree_of_json(ctx: Context) -> bool:
    """Does a DeepSpeed JSON set a degree other than accelerate's?"""
    return (
        ctx.sequence_parallel_size > 1
        and ctx.run.kind == "deepspeed-json"
        # accelerate makes the groups of its degree, and wraps the attention
        and not ctx.source.user_key(_DEGREE).startswith("parallelism_config")
    )


@_ulysses_gate(
    "SQ001 sequence-degree-without-groups",
    severity="warning",
    cites=Cite("__init__.py", 'if "sequence_parallel_size" in config and "data_parallel_size" in config:'),
)
def degree_without_groups(ctx: Context) -> Findings:
    """A sequence degree that makes no sequence groups.

    A DeepSpeed JSON with `sequence_parallel_size` above 1 and no `data_parallel_size`.

    Why: DeepSpeed makes its mesh of data and sequence groups only where the JSON has both keys. With the first alone
    there is no sequence group: every rank trains data parallel, but the batch triangle divides the ranks by the degree
    all the same, so `train_batch_size` becomes half (or a third, ...) of the sequences that a step consumes (run on
    0.19.8). A script that passes the `mpu` of `UlyssesSPAttentionHF` itself trains correctly and needs no such key;
    DeepSpeed's tutorial has the key anyway, so this is a warning. (For a run spec the harness renders it and passes the
    `mpu`.)

    Example: {
      "train_micro_batch_size_per_gpu": 1,
      "sequence_parallel_size": 2
    }
    """
    if _is_degree_of_json(ctx) and not ctx.has_key("data_parallel_size"):
        yield ctx.finding(
            f"{ctx.key(_DEGREE)} {ctx.sequence_parallel_size} makes no sequence groups without `data_parallel_size`",
            _DEGREE,
            label="divides the batch, but splits no sequence",
            notes=[
                "every rank trains on whole sequences; the batch triangle divides the ranks by the degree all the same",
                "a script that passes the mpu of `UlyssesSPAttentionHF` needs neither key",
            ],
            fix=ctx.fix_to_remove(_DEGREE, effect="the batch size is that of a step"),
        )


@_ulysses_gate(
    "SQ002 sequence-groups-alone-split-nothing",
    severity="warning",
    cites=(
        Cite("runtime/sequence_parallel/ulysses_sp.py", "def register_with_transformers("),
        Cite("utils/groups.py", 'return mesh_device.get_group(mesh_dim="data_parallel")'),
    ),
    when=lambda ctx: _is_degree_of_json(ctx) and ctx.has_key("data_parallel_size"),
)
def groups_without_wrapper(ctx: Context) -> Findings:
    """Sequence groups that only a script can use.

    A DeepSpeed JSON with both `sequence_parallel_size` above 1 and `data_parallel_size`.

    Why: The two keys make the groups, but nothing splits a sequence: that is done by the attention wrapper
    (`UlyssesSPAttentionHF.register_with_transformers`) and `UlyssesSPDataLoaderAdapter`, or by the Trainer's and
    accelerate's `parallelism_config`. Without them every rank of a group silently trains on the whole sequence (run on
    0.19.8: the losses of one rank).

    The groups are not enough for a script that splits sequences, either: at stages 0 to 2 gradients are reduced over
    the data ranks alone, so that each rank of a sequence group keeps its own and their weights drift apart (run on 2
    and 4 ranks; stage 3 reduces over all). Pass the `mpu` that `register_with_transformers` returns to
    `deepspeed.initialize`. With it, stages 0 to 2 add gradients up over a sequence group and stage 3 averages them
    (run): with the usual mean over all shards, gradients and their norm come out as many times too large as the degree
    at stages 0 to 2.

    Example: {
      "train_micro_batch_size_per_gpu": 1,
      "sequence_parallel_size": 2,
      "data_parallel_size": 2
    }
    """
    notes = ["it takes `UlyssesSPAttentionHF.register_with_transformers` and `UlyssesSPDataLoaderAdapter`"]
    if ctx.stage < 3:
        notes.append(
            "below stage 3 the groups of these keys leave gradients unreduced; `initialize` needs the `mpu` too"
        )
    yield ctx.finding(
        f"{ctx.key(_DEGREE)} {ctx.sequence_parallel_size} splits no sequence by itself, the script must",
        _DEGREE,
        related=[(_DATA_PARALLEL_SIZE, "makes the groups, with the degree")],
        notes=notes,
        fix=Fix(
            "remove both keys where the script has no wrapper",
            {_DEGREE: None, _DATA_PARALLEL_SIZE: None},
            effect="data parallel",
        ),
    )


def _has_mesh(ctx: Context) -> bool:
    """Does DeepSpeed get both keys, from which it makes a mesh? (A run spec's degree is written above 1 alone.)"""
    is_degree_written = ctx.sequence_parallel_size > 1 or (
        ctx.run.kind == "deepspeed-json" and ctx.ds("sequence_parallel_size") is not None
    )
    return is_degree_written and ctx.ds("data_parallel_size") is not None


@gate(
    "SQ003 mesh-is-not-the-world",
    upstream="raises",
    cites=Cite("__init__.py", "config to Initialize mesh device"),
    since="0.15.0",
    needs=("world size",),
    when=_has_mesh,
)
def mesh_of_another_size(ctx: Context) -> Findings:
    """A mesh that does not have the size of the world.

    `data_parallel_size` x the sequence degree is the number of ranks, also at a degree of 1.

    Why: A larger product is refused: "Mesh should not be bigger than default world size"; with a smaller one the ranks
    outside the mesh fail with an IndexError while the others train on (both run on 0.19.8, with degrees of 1 and 2).

    Example:
        parallel.sequence_parallel_size: 2
        launch.num_gpus: 4
        deepspeed.data_parallel_size: 4
    """
    size = ctx.ds("data_parallel_size")
    if not isinstance(size, int):
        return
    degree = ctx.sequence_parallel_size
    mesh_size = size * degree
    world_size = ctx.world_size or 0
    if mesh_size == world_size or world_size % degree:
        return
    quotient = world_size // degree
    if mesh_size > world_size:
        note = "torch refuses a mesh larger than the world"
    else:
        note = "ranks outside the mesh fail with an IndexError, the others train on"
    yield ctx.finding(
        f"a mesh of {size} x {degree} = {mesh_size} ranks in a world of {world_size}",
        _DATA_PARALLEL_SIZE,
        label=f"{quotient}?",
        related=[(_DEGREE, "times this"), ("launch.num_gpus", "the ranks are set here")],
        notes=[note],
        fix=ctx.fix_to_set(_DATA_PARALLEL_SIZE, quotient, effect="the mesh covers every rank"),
    )


@_ulysses_gate(
    "SQ004 heads-not-divided-by-sequence-degree",
    upstream="raises",
    cites=(
        Cite("runtime/sequence_parallel/ulysses_sp.py", "is not divisible by SP size {self.world_size}"),
        Cite("runtime/sequence_parallel/ulysses_sp.py", "KV attention head count {self.global_kv_head_count}"),
    ),
    needs=("model facts",),
    when=lambda ctx: ctx.sequence_parallel_size > 1,
)
def indivisible_heads(ctx: Context) -> Findings:
    """Attention heads that sequence parallelism cannot distribute.

    The query heads are a multiple of the sequence degree, and of key-value heads and degree one divides the other.
    With a tensor degree this concerns the heads of a tensor rank, which has equally many of each kind.

    Why: Ulysses gives each rank of a group whole heads of the whole sequence. "Attention head count 3 is not divisible
    by SP size 2", "KV attention head count 3 is not divisible by SP size 2 or vice versa": a ValueError when the
    attention is registered (run on 0.19.8; fewer key-value heads than ranks are copied, where they divide).

    Example:
        model.name_or_path: Qwen/Qwen2.5-0.5B
        parallel.sequence_parallel_size: 4
    """
    model = ctx.model
    if model is None:
        return
    degree, tensor = ctx.sequence_parallel_size, ctx.tensor_parallel_size
    heads, kv_heads = model.heads, model.kv_heads
    if _is_valid_degree(degree, tensor, heads, kv_heads):
        return
    candidates = range(min(degree - 1, heads), 0, -1)
    smaller_degree = next((c for c in candidates if _is_valid_degree(c, tensor, heads, kv_heads)), 1)
    ranks = f"{degree} sequence ranks" if tensor == 1 else f"{tensor} tensor x {degree} sequence ranks"
    yield ctx.finding(
        f"{heads} query and {kv_heads} key-value heads cannot be distributed over {ranks}",
        _DEGREE,
        related=[("model.name_or_path", "the model"), ("model.config", "the model")],
        notes=["DeepSpeed raises ValueError when the attention is registered"],
        fix=ctx.fix_to_set(_DEGREE, smaller_degree, effect="other memory and speed"),
    )


def _is_valid_degree(degree: int, tensor: int, heads: int, kv_heads: int) -> bool:
    """Can a group of this degree share out the heads of a tensor rank?"""
    if heads % tensor or kv_heads % tensor:
        return False
    heads, kv_heads = heads // tensor, kv_heads // tensor
    return heads % degree == 0 and (kv_heads % degree == 0 or degree % kv_heads == 0)


@spec_gate(
    "SQ009 length-not-divided-by-sequence-degree",
    upstream="raises",
    severity="warning",
    cites=Cite("runtime/sequence_parallel/ulysses_sp.py", "isn't divisible by sp-size={self.sp_world_size}"),
    since="0.17.0",
    when=lambda ctx: ctx.sequence_parallel_size > 1,
    unseen="the harness does not use the adapter",
)
def indivisible_length(ctx: Context) -> Findings:
    """Sequences that do not divide by the sequence degree.

    `data.max_length` is a multiple of `parallel.sequence_parallel_size`.

    Why: Each rank of a sequence group gets an equal part of every sequence: "batch's seqlen=1023 isn't divisible by
    sp-size=2", a ValueError from DeepSpeed's data loader adapter at the first batch (read in 0.17.0 and 0.19.8). The
    harness splits the sequences itself and pads each one, so this is a warning: the padding is wasted work.

    Example:
        data.max_length: 1023
        parallel.sequence_parallel_size: 2
    """
    length = ctx.run.spec.data.max_length
    degree = ctx.sequence_parallel_size
    if length % degree:
        key = "data.max_length"
        shorter_length = max(degree, length // degree * degree)
        padded_length = -(-length // degree) * degree
        yield ctx.finding(
            f"sequences of {length} tokens do not divide over {degree} sequence ranks",
            key,
            related=[(_DEGREE, "the sequence degree")],
            notes=[
                f"each is padded to {padded_length} positions",
                "DeepSpeed's own data loader adapter would raise ValueError at the first batch",
            ],
            fix=ctx.fix_to_set(key, shorter_length, effect="changes what is trained"),
        )


@_ulysses_gate(
    "SQ005 eager-attention-with-sequence-parallelism",
    upstream="raises",
    cites=Cite("runtime/sequence_parallel/ulysses_sp.py", "isn't currently supported by Ulysses"),
)
def eager_attention(ctx: Context) -> Findings:
    """Eager attention under sequence parallelism.

    `model.attn_implementation: eager`, or the same in `model.config`, with a sequence degree above 1.

    Why: Eager attention needs a mask of the whole sequence squared, which sequence parallelism throws away: "eager
    attn_implementation isn't currently supported by Ulysses sequence parallelism", a ValueError (run on 0.19.8; up to
    0.18.9 only `sdpa` and `flash_attention_2` are taken).

    Example:
        model.attn_implementation: eager
        parallel.sequence_parallel_size: 2
    """
    model = ctx.run.spec.model
    key, kernel = "model.attn_implementation", model.attn_implementation
    if kernel is None and model.config is not None:
        key, kernel = "model.config.attn_implementation", model.config.get("attn_implementation")
    if ctx.sequence_parallel_size > 1 and kernel == "eager":
        yield ctx.finding(
            f"eager attention does not run over {ctx.sequence_parallel_size} sequence ranks",
            key,
            related=[(_DEGREE, "sequence parallelism is set here")],
            notes=["DeepSpeed raises ValueError when the attention is registered"],
            fix=ctx.fix_to_set(key, "sdpa", effect="the same attention, other kernel"),
        )


@_ulysses_gate(
    "SQ006 sequence-with-tensor-or-pipeline",
    cites=Cite("utils/groups.py", "def _get_sequence_parallel_world_size():"),
    when=lambda ctx: (
        ctx.sequence_parallel_size > 1
        and (ctx.pipeline_parallel_size > 1 or (ctx.tensor_parallel_size > 1 and ctx.run.kind == "deepspeed-json"))
    ),
)
def sequence_with_tensor_or_pipeline(ctx: Context) -> Findings:
    """Sequence parallelism together with pipeline parallelism, or in a DeepSpeed JSON with tensor parallelism.

    A sequence degree above 1 with pipeline stages, or in a DeepSpeed JSON with a tensor degree above 1.

    Why: The degrees do not multiply, they overlap: four ranks with a sequence and a tensor degree of 2 act as two data
    ranks, two sequence ranks and two model ranks at once, and train with the losses of plain data parallelism over two
    (run on 0.19.8, without an error). With the wrapper of `UlyssesSPAttentionHF` and AutoTP it fails with an IndexError
    instead (run). For a run spec the harness makes the sequence groups itself, next to those of AutoTP. A
    PipelineModule ignores the sequence keys, and the harness does not split the rows of its stages.

    Example:
        train.gradient_accumulation_steps: 8
        zero.stage: 1
        parallel.pipeline_parallel_size: 2
        parallel.sequence_parallel_size: 2
    """
    if ctx.pipeline_parallel_size > 1:
        name, size = "pipeline", ctx.pipeline_parallel_size
    else:
        name, size = "tensor", ctx.tensor_parallel_size
    yield ctx.finding(
        f"a sequence degree of {ctx.sequence_parallel_size} and a {name} degree of {size} "
        "overlap instead of multiplying",
        _DEGREE,
        related=[(f"parallel.{name}_parallel_size", f"the {name} degree")],
        notes=["DeepSpeed silently accepts it and puts the same ranks into both groups"],
        fix=ctx.fix_to_set(_DEGREE, 1, effect="whole sequences on every rank"),
    )


@spec_gate(
    "SQ011 bf16-optimizer-with-sequence-parallelism",
    upstream="raises",
    cites=(
        Cite("runtime/bf16_optimizer.py", "if not (tensor_mp_rank == 0 or is_model_parallel_parameter(lp)"),
        Cite("runtime/utils.py", "torch.stack(all_norms)"),
    ),
    since="0.17.0",
    when=lambda ctx: ctx.sequence_parallel_size > 1 and ctx.stage == 1 and ctx.has_key("data_types.grad_accum_dtype"),
)
def bf16_optimizer(ctx: Context) -> Findings:
    """Sequence parallelism with bf16 weights and fp32 accumulation at stage 1.

    A sequence degree above 1 with bf16 and `data_types.grad_accum_dtype: fp32` at ZeRO stage 1, without optimizer
    offload.

    Why: That combination trains with another optimizer class, `BF16_Optimizer`. It treats the rank in the sequence
    group as a tensor rank and skips the gradients of all ranks but the first as copies, so the others have none for the
    norm: `RuntimeError: stack expects a non-empty TensorList` at the first step (run on 0.19.8, on 2 and 4 ranks).

    Example:
        precision.bf16: true
        zero.stage: 1
        parallel.sequence_parallel_size: 2
        deepspeed.data_types.grad_accum_dtype: fp32
    """
    # DeepSpeed takes BF16_Optimizer at stage 1 for bf16 weights and fp32 accumulation, with no offloaded optimizer
    if model_dtype(ctx) == "bf16" and grad_accum_dtype(ctx) == "fp32" and not ctx.is_optimizer_offloaded:
        yield ctx.finding(
            f"fp32 accumulation of bf16 at ZeRO stage 1 does not run over {ctx.sequence_parallel_size} sequence ranks",
            "deepspeed.data_types.grad_accum_dtype",
            related=[(_DEGREE, "sequence parallelism is set here")],
            notes=["DeepSpeed takes another optimizer class for it, which fails at the first step"],
            fix=ctx.fix_to_set("zero.stage", 2, effect="ZeRO-2 accumulates in fp32 too, and shards the gradients"),
        )


@gate(
    "SQ012 mesh-over-tensor-ranks",
    upstream="wrong",
    cites=(
        Cite("__init__.py", 'if "sequence_parallel_size" in config and "data_parallel_size" in config:'),
        Cite("utils/groups.py", 'return mesh_device.get_group(mesh_dim="data_parallel")'),
        Cite("runtime/engine.py", "def _broadcast_model(self):"),
    ),
    since="0.16.4",
    when=lambda ctx: _has_mesh(ctx) and ctx.sequence_parallel_size == 1 and ctx.tensor_parallel_size > 1,
)
def mesh_over_tensor_ranks(ctx: Context) -> Findings:
    """A data mesh that contains the tensor ranks of AutoTP.

    A DeepSpeed JSON with `data_parallel_size`, `sequence_parallel_size: 1` and `tensor_parallel.autotp_size` above 1.

    Why: DeepSpeed makes its data groups from the two keys, without regard to AutoTP. A mesh of all ranks puts the ranks
    of a tensor group into one data group, in which the engine broadcasts the weights: the second rank of each tensor
    group silently trains with the first one's shards, another model from the first step on (run on 0.19.8 with 2 ranks:
    the shard of rank 1 is that of rank 0). A smaller mesh is `mesh-is-not-the-world`. AutoTP makes the right groups
    without the keys.

    Example: {
      "train_micro_batch_size_per_gpu": 1,
      "zero_optimization": {"stage": 1},
      "tensor_parallel": {"autotp_size": 2},
      "sequence_parallel_size": 1,
      "data_parallel_size": 8
    }
    """
    yield ctx.finding(
        f"{ctx.key(_DATA_PARALLEL_SIZE)} with {ctx.key(_DEGREE)} puts the ranks of AutoTP into one data group",
        _DATA_PARALLEL_SIZE,
        label="rank 0's shards overwrite the others",
        related=[(_DEGREE, "makes the groups, with this"), ("parallel.tensor_parallel_size", "the tensor degree")],
        notes=["AutoTP makes the data groups itself, world size / tensor degree ranks each"],
        fix=Fix(
            f"remove {ctx.key(_DATA_PARALLEL_SIZE)} and {ctx.key(_DEGREE)}",
            {_DATA_PARALLEL_SIZE: None, _DEGREE: None},
            effect="every rank keeps its own shards",
        ),
    )
