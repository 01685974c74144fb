# SPDX-License-Identifier: Apache-2.0
"""Reduction of gradients between ranks: scale, sum, order and buckets."""

from __future__ import annotations

from harness.gates.registry import Cite, Context, Findings, Fix, gate

_REDUCE_OP = "deepspeed.gradient_allreduce_op"


def _has_summed_gradients(ctx: Context) -> bool:
    """Are gradients summed over the ranks, where the default is the average?"""
    return str(ctx.ds("gradient_allreduce_op", "mean")).lower() == "sum"


@gate(
    "ZR004 odd-allgather-bucket",
    upstream="asserts",
    cites=Cite(
        "runtime/zero/stage_1_and_2.py", "allgather_bucket_size must be a multiple of nccl_start_alignment_factor"
    ),
    when=lambda ctx: ctx.stage in (1, 2),
)
def odd_allgather_bucket(ctx: Context) -> Findings:
    """An allgather bucket of an odd size.

    `zero.allgather_bucket_size` that is odd, at stage 1 or 2.

    Why: The optimizer of stages 1 and 2 asserts a multiple of 2 (4 bytes in 16-bit elements) when it is built, after
    every rank has its weights. Stage 3 does not read the key (run on 0.19.8).

    Example:
        zero.stage: 2
        zero.allgather_bucket_size: 499999999
    """
    size = ctx.ds("zero_optimization.allgather_bucket_size", 0)
    if size % 2 == 0:
        return
    key = "zero.allgather_bucket_size"
    if ctx.ds("zero_optimization.zenflow"):
        fix = ctx.fix_to_set(key, size + 1, effect="one element more in a bucket")
    else:  # ZenFlow alone uses it: ZR024
        fix = Fix(f"remove {ctx.key(key)}: it has no effect", {key: None}, safe=True)
    yield ctx.finding(
        f"{ctx.key(key)} is {size}, DeepSpeed needs a multiple of 2",
        key,
        label="odd",
        related=[("zero.stage", "read at stages 1 and 2")],
        fix=fix,
    )


_SCALING_KEYS = {"prescale_gradients": False, "gradient_predivide_factor": 1.0}
"""Each with the value that asks for nothing."""


@gate(
    "ZR005 predivide-with-reduce-scatter",
    upstream="asserts",
    cites=(
        Cite("runtime/zero/stage_1_and_2.py", "gradient_predivide_factor != 1.0 is not yet supported with"),
        Cite("runtime/zero/stage3.py", "pre-scale gradients is not yet supported with ZeRO-3"),
    ),
    when=lambda ctx: ctx.stage in (2, 3) and ctx.ds("zero_optimization.reduce_scatter", True) is True,
)
def predivide_with_reduce_scatter(ctx: Context) -> Findings:
    """Pre-scaled gradients with reduce-scatter.

    `gradient_predivide_factor` other than 1.0, or `prescale_gradients: true`, at stage 2 or 3 while
    `zero.reduce_scatter` is on, which is the default.

    Why: Both optimizers assert against it when they are built (run on 0.19.8). With `reduce_scatter: false` it runs and
    the average comes out the same.

    Example:
        zero.stage: 2
        deepspeed.prescale_gradients: true

    Use instead:
        zero.stage: 2
        zero.reduce_scatter: false
        deepspeed.prescale_gradients: true
    """
    if ctx.stage == 2 and _has_summed_gradients(ctx):
        return  # stage 2 checks only when it averages
    keys = [f"deepspeed.{name}" for name, idle in _SCALING_KEYS.items() if ctx.ds(name, idle) != idle]
    if keys:
        yield ctx.finding(
            f"{ctx.key(keys[0])} does not go with reduce-scatter at ZeRO stage {ctx.stage}",
            keys[0],
            label="the average is taken by reduce-scatter",
            related=[("zero.stage", "the stage is set here")],
            notes=["DeepSpeed asserts this only when the engine is built, after every rank has its weights"],
            fix=Fix(
                f"remove {'it' if len(keys) == 1 else 'both'}: the average of the gradients is the same",
                dict.fromkeys(keys),
                effect="gradients are divided after they are summed",
            ),
        )


@gate(
    "ZR006 gradients-divided-by-zero",
    upstream="crashes",
    cites=Cite("runtime/engine.py", "tensor_to_allreduce.mul_(1.0 / self.gradient_predivide_factor())"),
    when=lambda ctx: ctx.ds("gradient_predivide_factor", 1.0) == 0,
)
def zero_predivide_factor(ctx: Context) -> Findings:
    """Gradients divided by zero.

    `gradient_predivide_factor: 0` at stage 0, or at stages 1 to 3 with `zero.reduce_scatter: false`. With
    `prescale_gradients` the factor is not read, nor at stage 1 with reduce-scatter.

    Why: Every reduction divides by the factor first: ZeroDivisionError in the first step at stages 0, 1 and 2. At stage
    3 the gradients become inf, every step is skipped and nothing is trained, without an error (run on 0.19.8). Stages 2
    and 3 with reduce-scatter refuse every factor but 1, which is gate ZR005.

    Example:
        zero.stage: 0
        deepspeed.gradient_predivide_factor: 0
    """
    if ctx.ds("prescale_gradients", False) or _has_summed_gradients(ctx):
        return
    if ctx.stage == 0 or ctx.ds("zero_optimization.reduce_scatter", True) is False:
        key = "deepspeed.gradient_predivide_factor"
        yield ctx.finding(
            f"{ctx.key(key)} is 0, and every gradient is divided by it",
            key,
            label="every step is skipped" if ctx.stage == 3 else "division by zero in the first step",
            fix=ctx.fix_to_set(key, 1.0, effect="gradients are not divided before they are summed"),
        )


def _find_conflict_of_sum(ctx: Context) -> tuple[str, str] | None:
    """The feature with which DeepSpeed refuses summed gradients, and its key; None where it takes them."""
    if ctx.stage == 3:
        return "ZeRO stage 3", "zero.stage"
    if ctx.ds("zero_optimization.zenflow") is not None:
        return "ZenFlow", "deepspeed.zero_optimization.zenflow"
    if ctx.ds("compile.deepcompile") is True:
        return "DeepCompile", "deepspeed.compile.deepcompile"
    return None


@gate(
    "ZR007 summed-gradients-refused",
    upstream="raises",
    cites=Cite("runtime/config.py", "='sum' is not supported with ZeRO stage 3"),
    since="0.19.6",
    when=_has_summed_gradients,
)
def refused_summed_gradients(ctx: Context) -> Findings:
    """Summed gradients where DeepSpeed only averages.

    `gradient_allreduce_op: sum` with stage 3, with ZenFlow or with DeepCompile.

    Why: DeepSpeed refuses each of the three while it reads the configuration, on every rank (run on 0.19.8).

    Example:
        zero.stage: 3
        deepspeed.gradient_allreduce_op: sum
    """
    conflict = _find_conflict_of_sum(ctx)
    if conflict is None:
        return
    feature, feature_key = conflict
    yield ctx.finding(
        f"{ctx.key(_REDUCE_OP)} is `sum`, which DeepSpeed refuses with {feature}",
        _REDUCE_OP,
        related=[(feature_key, "set here")],
        fix=Fix(
            f"set {ctx.key(_REDUCE_OP)} to `mean` and multiply the learning rate by the data-parallel ranks",
            {_REDUCE_OP: "mean"},
            effect="gradients are averaged: the same learning rate takes smaller steps",
        ),
    )


@gate(
    "ZR008 summed-gradients-grow-with-ranks",
    severity="info",
    cites=Cite("runtime/engine.py", "self.gradient_average = config_class.gradient_allreduce_op"),
    since="0.19.6",
)
def rank_dependent_gradients(ctx: Context) -> Findings:
    """Summed gradients grow with the number of ranks.

    `gradient_allreduce_op: sum` where DeepSpeed takes it: stages 0 to 2.

    Why: The gradient is the sum over the data-parallel ranks and not their average. The same file trains differently on
    every number of ranks: plain gradient descent takes steps that are larger by that factor, and clipping acts on a
    larger norm (run on 0.19.8 with two ranks).

    Example:
        zero.stage: 1
        deepspeed.gradient_allreduce_op: sum
    """
    if _has_summed_gradients(ctx) and _find_conflict_of_sum(ctx) is None:  # else refused: ZR007
        ranks = ctx.data_parallel_size
        factor = f", {ranks} times the average here" if ranks else ""
        yield ctx.finding(
            f"{ctx.key(_REDUCE_OP)} is `sum`: gradients grow with the number of data-parallel ranks{factor}",
            _REDUCE_OP,
            label="depends on the number of ranks",
            fix=ctx.fix_to_set(_REDUCE_OP, "mean", effect="gradients are averaged over the ranks"),
        )


@gate(
    "ZR009 round-robin-gradients-and-resuming",
    severity="info",
    cites=Cite("runtime/zero/stage_1_and_2.py", "self.round_robin_gradients = round_robin_gradients"),
)
def round_robin_gradients(ctx: Context) -> Findings:
    """Round-robin gradients and a later resume.

    `zero.round_robin_gradients: true` at stage 1 or 2.

    Why: It works, but it changes the order of the parameters in the checkpoint's optimizer files. A checkpoint that was
    saved with it and is loaded without it, or the other way round, loads without an error and puts the weights of one
    parameter into another (run on 0.16.9 to 0.19.8).

    Example:
        zero.stage: 2
        zero.round_robin_gradients: true
    """
    if ctx.stage in (1, 2) and ctx.ds("zero_optimization.round_robin_gradients") is True:
        key = "zero.round_robin_gradients"
        yield ctx.finding(
            f"{ctx.key(key)} must never change between saving a checkpoint and resuming from it",
            key,
            label="part of the checkpoint's layout",
            notes=["a checkpoint that is loaded with another value has its parameters permuted, without an error"],
            fix=Fix(
                f"leave {ctx.key(key)} out of runs that start from step 0",
                {key: None},
                effect="the same steps; checkpoints of runs that had it can then not be resumed",
            ),
        )
