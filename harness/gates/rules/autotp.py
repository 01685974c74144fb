# SPDX-License-Identifier: Apache-2.0
"""AutoTP: degrees, releases, heads and shards."""

from __future__ import annotations

from collections.abc import Iterator

from harness.facts.tensor_parallel_plans import SCALED_EMBEDDINGS
from harness.gates.divisors import largest_divisor
from harness.gates.registry import Cite, Context, Findings, Fix, gate

_DEGREE = "parallel.tensor_parallel_size"
_INFERENCE_BLOCKS = ("tp", "tensor_parallel")
"""Both names of the block that has the tensor degree of inference."""


@gate(
    "TP001 autotp-with-zero-3",
    upstream="raises",
    since="0.16.4",
    until="0.19.3",
    when=lambda ctx: ctx.autotp_size > 1 and ctx.stage == 3,
)
def autotp_with_zero_3(ctx: Context) -> Findings:
    """AutoTP with ZeRO stage 3.

    `zero.stage: 3` together with `parallel.tensor_parallel_size` above 1.

    Why: DeepSpeed 0.16.4 to 0.19.3 refuses the pair when the engine is built: "Currently, the compatibility between
    'autotp' and 'zero_stage = 3' has not been validated" (run on 0.19.3; 0.18.2 by an AttributeError instead). From
    0.19.4 on it is documented and trains: on 0.19.4 and 0.19.8 with the losses of stage 0 without tensor parallelism
    (run on 2 ranks, 0.19.8 on 4 as well). Before 0.16.4 there is no AutoTP training at any stage: see
    `autotp-before-0-16-4`.

    Example:
        zero.stage: 3
        parallel.tensor_parallel_size: 2
    """
    key = "zero.stage"
    yield ctx.finding(
        f"AutoTP over {ctx.autotp_size} ranks does not run at ZeRO stage 3 before DeepSpeed 0.19.4",
        key,
        label="shards parameters a second time",
        related=[(_DEGREE, "tensor parallelism is set here")],
        notes=[f"DeepSpeed {ctx.target.text} refuses it when the engine is built"],
        fix=ctx.fix_to_set(key, 2, effect="the same steps with more memory"),
    )


@gate("TP002 autotp-before-0-16-4", until="0.16.3", unseen="needs an older DeepSpeed")
def autotp_before_0_16_4(ctx: Context) -> Findings:
    """AutoTP on a release that does not train with it.

    `parallel.tensor_parallel_size` above 1 on DeepSpeed 0.16.3 and older.

    Why: These releases have AutoTP for inference only. The training engine does not read the `tensor_parallel` block:
    every rank silently keeps whole layers and trains data parallel, with a larger global batch than the file sets (run
    on 0.14.5 and 0.15.4: the losses of plain data parallelism).

    Example:
        parallel.tensor_parallel_size: 2

    Use instead:
        zero.stage: 3
    """
    if ctx.autotp_size > 1 and ctx.run.kind == "spec":  # in a JSON the key itself is refused
        yield ctx.finding(
            f"DeepSpeed {ctx.target.text} does not train with AutoTP, "
            f"{ctx.key(_DEGREE)} {ctx.autotp_size} has no effect",
            _DEGREE,
            label="needs 0.16.4",
            notes=["every rank keeps whole layers and trains data parallel, with another global batch"],
            fix=Fix(
                f"upgrade to DeepSpeed 0.16.4 or newer, or set {ctx.key(_DEGREE)} to 1",
                {_DEGREE: 1},
                effect="trains data parallel, with more memory a rank",
            ),
        )


@gate(
    "TP020 autotp-on-cpu-before-0-17",
    upstream="crashes",
    since="0.16.4",
    until="0.16.9",
    needs=("the accelerator",),
    when=lambda ctx: ctx.autotp_size > 1,
    unseen="needs an older DeepSpeed",
)
def autotp_on_cpu(ctx: Context) -> Findings:
    """AutoTP on the CPU accelerator, up to 0.16.9.

    A tensor degree with DeepSpeed 0.16.4 to 0.16.9 on the CPU accelerator.

    Why: These releases ask torch for a device by a name that the CPU accelerator does not have: "Invalid device string"
    at initialisation (run on 0.16.9).

    Example:
        parallel.tensor_parallel_size: 2
        cluster.gpu: cpu

    Use instead:
        zero.stage: 3
        cluster.gpu: cpu
    """
    if ctx.accelerator == "cpu":
        yield ctx.finding(
            f"DeepSpeed {ctx.target.text} cannot train with AutoTP on the CPU accelerator",
            _DEGREE,
            notes=["it fails at initialisation with `Invalid device string`"],
            fix=ctx.fix_to_set(_DEGREE, 1, "or use a newer DeepSpeed", effect="trains data parallel"),
        )


@gate(
    "TP018 autotp-in-a-pipeline",
    upstream="asserts",
    cites=Cite("module_inject/auto_tp.py", "Not able to determine model policy automatically. Please provide policy."),
    since="0.16.4",
)
def autotp_in_a_pipeline(ctx: Context) -> Findings:
    """AutoTP under a PipelineModule.

    `tensor_parallel` of DeepSpeed's JSON together with pipeline stages. (`parallel.tensor_parallel_size` of a run spec
    shards the layers of the stages without AutoTP.)

    Why: AutoTP looks for the layers of a Hugging Face model and finds none in a PipelineModule: "Not able to determine
    model policy automatically. Please provide policy.", an assertion at initialisation (run on 0.19.8 with one and with
    two stages). The layers of a pipeline must be parallel themselves, as Megatron's are, and those that the harness
    makes of a `transformers` model; they read nothing of the block.

    Example:
        train.gradient_accumulation_steps: 8
        zero.stage: 1
        parallel.tensor_parallel_size: 2
        parallel.pipeline_parallel_size: 2
        deepspeed.tensor_parallel.preset_model: llama
    """
    if ctx.pipeline_parallel_size == 1:
        return
    stages = ("parallel.pipeline_parallel_size", "the pipeline is set here")
    block = ctx.run.spec.deepspeed.get("tensor_parallel")
    if ctx.autotp_size > 1:
        yield ctx.finding(
            f"AutoTP over {ctx.autotp_size} ranks finds no layers in a PipelineModule of "
            f"{ctx.pipeline_parallel_size} stages",
            _DEGREE,
            related=[stages],
            notes=["DeepSpeed asserts this at initialisation, after every rank has its weights"],
            fix=ctx.fix_to_set(_DEGREE, 1, effect="more data-parallel ranks, other memory"),
        )
    elif ctx.run.kind == "spec" and block:
        yield ctx.finding(
            f"AutoTP's block {ctx.key('deepspeed.tensor_parallel')} does not shard the layers of a pipeline of "
            f"{ctx.pipeline_parallel_size} stages",
            "deepspeed.tensor_parallel",
            related=[stages],
            notes=[f"{ctx.key(_DEGREE)} does; with `autotp_size` above 1 DeepSpeed asserts at initialisation"],
            fix=ctx.fix_to_remove("deepspeed.tensor_parallel", effect="the layers as the spec's degree shards them"),
        )


def _iter_inference_degrees(ctx: Context) -> Iterator[tuple[str, int]]:
    """The spec key and the value of `tp_size` under each name of its block."""
    for block in _INFERENCE_BLOCKS:
        size = ctx.ds(f"tensor_parallel.{block}.tp_size")
        if isinstance(size, int):
            yield f"deepspeed.tensor_parallel.{block}.tp_size", size


@gate(
    "TP011 tensor-degree-in-tp-size-alone",
    cites=Cite("runtime/engine.py", "return self._config.tensor_parallel_config.autotp_size"),
    since="0.16.4",
    when=lambda ctx: ctx.tensor_parallel_size == 1,
)
def degree_in_tp_size_alone(ctx: Context) -> Findings:
    """A tensor degree in the wrong key.

    `tensor_parallel.tp.tp_size` (or its long name) above 1 while no tensor degree is set.

    Why: Training reads `autotp_size` alone; `tp.tp_size` belongs to inference. With only the latter nothing is sharded,
    every rank keeps whole layers and trains data parallel (run on 0.19.8).

    Example:
        deepspeed.tensor_parallel.tp.tp_size: 2
    """
    for key, size in _iter_inference_degrees(ctx):
        if size > 1:
            yield ctx.unread(
                f"training does not read {ctx.key(key)}: there is no tensor parallelism over {size} ranks",
                key,
                notes=["every rank keeps whole layers and trains data parallel"],
                fix=Fix(
                    f"set {ctx.key(_DEGREE)} to {size} and remove it",
                    {_DEGREE: size, key: None},
                    effect=f"shards each layer over {size} ranks",
                ),
            )


@gate(
    "TP012 two-tensor-degrees",
    upstream="raises",
    cites=Cite("runtime/engine.py", 'f"does not match tensor_parallel.autotp_size ({tp_size})."'),
    since="0.18.6",
    when=lambda ctx: ctx.autotp_size > 1,
)
def two_tensor_degrees(ctx: Context) -> Findings:
    """Two tensor degrees that differ.

    `tensor_parallel.tp.tp_size`, where it is written next to a tensor degree, is 1 or that degree.

    Why: "tensor_parallel.tp.tp_size (4) does not match tensor_parallel.autotp_size (2)": a ValueError at initialisation
    (run on 0.19.8).

    Example:
        parallel.tensor_parallel_size: 2
        deepspeed.tensor_parallel.tp.tp_size: 4
    """
    for key, size in _iter_inference_degrees(ctx):
        if size not in (1, ctx.autotp_size):
            yield ctx.finding(
                f"{ctx.key(key)} is {size}, {ctx.key(_DEGREE)} is {ctx.autotp_size}",
                key,
                related=[(_DEGREE, "this one counts")],
                notes=["DeepSpeed raises ValueError at initialisation"],
                fix=ctx.fix_to_remove(key, safe=True, effect="the other one is what training reads"),
            )


_TRAINING_OPTIONS = (
    "preset_model",
    "partition_config",
    "vocab_parallel_lm_head",
    "vocab_parallel_ce_backend",
    "tp_overlap_comm",
)


@gate(
    "TP013 tensor-options-without-degree",
    severity="warning",
    unread="read with a degree above 1 alone",
    cites=Cite("runtime/engine.py", "if self.autotp_size() > 1:"),
    since="0.16.6",
    when=lambda ctx: ctx.tensor_parallel_size == 1 and bool(ctx.ds("tensor_parallel")),
)
def options_without_degree(ctx: Context) -> Findings:
    """Tensor-parallel options without a tensor degree.

    `preset_model`, `partition_config`, `vocab_parallel_lm_head`, `vocab_parallel_ce_backend` or `tp_overlap_comm` in
    the `tensor_parallel` block while the tensor degree is 1.

    Why: DeepSpeed partitions a model only where `autotp_size` is above 1; DeepSpeed does not read the rest of the
    block, and every rank trains data parallel.

    Example:
        deepspeed.tensor_parallel.preset_model: llama

    Use instead:
        parallel.tensor_parallel_size: 2
        deepspeed.tensor_parallel.preset_model: llama
    """
    if any((ctx.ds(f"tensor_parallel.{block}.tp_size") or 1) != 1 for block in _INFERENCE_BLOCKS):
        return  # that is where the degree was meant to be
    options = [name for name in _TRAINING_OPTIONS if ctx.ds(f"tensor_parallel.{name}") not in (None, False, "torch")]
    if options:
        keys = [f"deepspeed.tensor_parallel.{name}" for name in options]
        key = keys[0]
        yield ctx.finding(
            f"{ctx.key(key)} has no effect without a tensor degree above 1",
            key,
            label="is not read",
            related=[(other, "nor is this") for other in keys[1:]],
            notes=["every rank keeps whole layers and trains data parallel"],
            fix=Fix(
                f"set {ctx.key(_DEGREE)}, or remove the block's options",
                dict.fromkeys(keys),
                safe=True,
                effect="nothing else is trained than now",
            ),
        )


def _fix_degree(ctx: Context, *sizes: int) -> Fix:
    """The fix that sets a degree which divides these sizes."""
    degree = largest_divisor(ctx.autotp_size, *sizes)
    return ctx.fix_to_set(_DEGREE, degree, effect="other memory and speed")


@gate(
    "TP003 heads-not-divided-by-autotp",
    upstream="crashes",
    since="0.19.3",
    until="0.19.5",
    needs=("model facts",),
    when=lambda ctx: ctx.autotp_size > 1,
    unseen="needs an older DeepSpeed",
)
def indivisible_heads(ctx: Context) -> Findings:
    """Attention heads that do not divide by the tensor degree, up to 0.19.5.

    The model's query and key-value heads are multiples of `parallel.tensor_parallel_size`, on DeepSpeed 0.19.3 to
    0.19.5.

    Why: These releases cut the projections without regard to whole heads, and the first forward pass ends in "shape ...
    is invalid for input of size" (run on 0.19.3). 0.18.2, 0.18.3 and everything from 0.19.7 on distribute the heads
    unevenly. DeepSpeed's history has the fix of uneven sharding right after 0.19.5.

    Example:
        model.name_or_path: Qwen/Qwen2.5-0.5B
        parallel.tensor_parallel_size: 4
    """
    model = ctx.model
    degree = ctx.autotp_size
    if model is not None and (model.heads % degree or model.kv_heads % degree):
        yield ctx.finding(
            f"{model.heads} query and {model.kv_heads} key-value heads do not divide over {degree} tensor ranks",
            _DEGREE,
            related=[("model.name_or_path", "the model")],
            notes=[f"DeepSpeed {ctx.target.text} fails in the first forward pass"],
            fix=_fix_degree(ctx, model.heads, model.kv_heads),
        )


@gate(
    "TP004 uneven-tensor-shards",
    severity="warning",
    cites=Cite("module_inject/tp_shard.py", "def get_shard_size_list("),
    since="0.19.6",
    needs=("model facts",),
    when=lambda ctx: ctx.autotp_size > 1,
)
def uneven_shards(ctx: Context) -> Findings:
    """Shards of different size on the ranks of a tensor group.

    Key-value heads and the width of the MLP are multiples of `parallel.tensor_parallel_size` (for fewer key-value heads
    than ranks see `fewer-key-value-heads-than-tensor-ranks`).

    Why: Nothing fails: DeepSpeed distributes whole key-value heads with the query heads that use them, and rows of the
    MLP, as evenly as it can, and the losses are those of one rank (run on 0.19.8 with 3 heads over 2 ranks and a width
    of 129). But every layer waits for the rank with the largest share, and a checkpoint with uneven shards fits this
    degree only.

    Example:
        model.name_or_path: meta-llama/Llama-3.1-8B
        parallel.tensor_parallel_size: 3
    """
    model = ctx.model
    degree = ctx.autotp_size
    if model is None or model.kv_heads < degree:
        return
    heads = model.kv_heads
    rows = model.intermediate
    size, unit = (heads, "key-value heads") if heads % degree else (rows, "rows of the MLP")
    if size % degree:
        yield ctx.finding(
            f"{size} {unit} do not divide over {degree} tensor ranks, {size // degree + 1} is the largest share",
            _DEGREE,
            related=[("model.name_or_path", "the model")],
            notes=["the losses are right; every layer waits for the rank with the largest share"],
            fix=_fix_degree(ctx, heads, rows),
        )


@gate(
    "TP005 fewer-key-value-heads-than-tensor-ranks",
    severity="warning",
    cites=Cite("runtime/engine.py", "ranks beyond the head count hold no attention shard"),
    since="0.19.6",
    needs=("model facts",),
    when=lambda ctx: ctx.autotp_size > 1,
)
def fewer_kv_heads_than_ranks(ctx: Context) -> Findings:
    """More tensor ranks than key-value heads.

    The model has at least as many key-value heads as `parallel.tensor_parallel_size`.

    Why: AutoTP distributes key-value heads with the query heads that use them, and does not copy heads. Ranks beyond
    the last head hold no attention weights at all: they compute nothing there and wait. The losses are right (run on
    0.19.8: one key-value head over two ranks put all 64 query rows on the first).

    Example:
        model.name_or_path: Qwen/Qwen2.5-0.5B
        parallel.tensor_parallel_size: 4
    """
    degree = ctx.autotp_size
    if ctx.model is None or ctx.model.kv_heads >= degree:
        return
    heads = ctx.model.kv_heads
    idle = degree - heads
    yield ctx.finding(
        f"{heads} key-value {'head' if heads == 1 else 'heads'} over {degree} tensor ranks leave"
        f" {idle} without attention",
        _DEGREE,
        label=f"{idle} of {degree} idle in every attention",
        related=[("model.name_or_path", "the model")],
        notes=["DeepSpeed only warns; the losses are right"],
        fix=_fix_degree(ctx, heads, ctx.model.intermediate),
    )


@gate(
    "TP017 liger-without-vocabulary-parallel-head",
    upstream="raises",
    cites=Cite("runtime/engine.py", "requires a no-gather vocabulary-parallel LM head"),
    since="0.19.8",
    when=lambda ctx: ctx.autotp_size > 1 and ctx.ds("tensor_parallel.vocab_parallel_ce_backend") == "liger",
)
def liger_without_head(ctx: Context) -> Findings:
    """Liger's cross-entropy without a vocabulary-parallel head.

    `tensor_parallel.vocab_parallel_ce_backend: liger` while the output head is not sharded over the vocabulary: with
    `vocab_parallel_lm_head: false`, or where it is not set and the model does not tie its embeddings, is a Gemma or a
    Gemma 2, or has a preset or a `partition_config`.

    Why: "vocab_parallel_ce_backend='liger' requires a no-gather vocabulary-parallel LM head": a ValueError at
    initialisation, after the model has been sharded (run on 0.19.8). Left to itself DeepSpeed shards the head over the
    vocabulary only by the plan of `transformers`, where it is tied to an embedding without a forward of its own.

    Example:
        parallel.tensor_parallel_size: 2
        deepspeed.tensor_parallel.vocab_parallel_lm_head: false
        deepspeed.tensor_parallel.vocab_parallel_ce_backend: liger
    """
    from harness.plan.weights.tensor_shard import TensorPlanChoice, shard_model

    head = ctx.ds("tensor_parallel.vocab_parallel_lm_head")
    choice = TensorPlanChoice.from_block(ctx.run.spec.deepspeed.get("tensor_parallel"))
    shard = None if ctx.model is None else shard_model(ctx.model, ctx.autotp_size, choice)
    if shard is None or not shard.is_known:
        may_be_sharded = head is not False
    else:
        may_be_sharded = bool(shard.refusal) or shard.head == "vocabulary"
    if may_be_sharded:
        return
    key = "deepspeed.tensor_parallel.vocab_parallel_ce_backend"
    switch = "deepspeed.tensor_parallel.vocab_parallel_lm_head"
    if head is False:
        reason = "is switched off"
    elif choice.preset or choice.partition:
        reason = "a preset or a `partition_config` does not give"
    elif ctx.model is not None and ctx.model.tied:
        reason = f"a `{ctx.model.family}` model does not get"
    else:
        reason = "a model without tied embeddings does not get"
    is_possible = ctx.model is None or not ctx.model.tied or ctx.model.family not in SCALED_EMBEDDINGS
    yield ctx.finding(
        f"{ctx.key(key)} `liger` needs a vocabulary-parallel head, which {reason}",
        key,
        related=[(switch, "switched off here"), ("model.name_or_path", "the model")],
        notes=["DeepSpeed raises ValueError at initialisation"],
        fix=ctx.fix_to_set(switch, True, effect="shards the head over the vocabulary")
        if is_possible
        else ctx.fix_to_remove(key, effect="the plain cross-entropy"),
    )
