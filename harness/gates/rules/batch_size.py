# SPDX-License-Identifier: Apache-2.0
"""The batch: micro-batch, accumulation steps, global batch and the ranks that share it."""

from __future__ import annotations

from harness.gates.registry import Cite, Context, Finding, Findings, Fix, gate

_TOTAL = "train.global_batch_size"
_MICRO = "train.per_device_train_batch_size"
_STEPS = "train.gradient_accumulation_steps"


def _fix_total(ctx: Context, size: int) -> Fix:
    return ctx.fix_to_set(_TOTAL, size, effect="changes what is trained")


@gate(
    "BT002 no-batch-size",
    upstream="raises",
    severity=("error", "warning"),
    cites=Cite("runtime/config.py", "Either train_batch_size or train_micro_batch_size_per_gpu needs to be provided"),
)
def no_batch_size(ctx: Context) -> Findings:
    """No batch size at all.

    At least one of `train.per_device_train_batch_size` and `train.global_batch_size` is given.

    Why: DeepSpeed refuses it while it reads the configuration, on every rank: "Either train_batch_size or
    train_micro_batch_size_per_gpu needs to be provided".

    Example:
        train.per_device_train_batch_size: null
    """
    train = ctx.run.spec.train
    if train.per_device_train_batch_size or train.global_batch_size:
        return
    is_json = ctx.run.kind == "deepspeed-json"
    data = ctx.source.data
    if is_json and "auto" in (data.get("train_batch_size"), data.get("train_micro_batch_size_per_gpu")):
        return  # whoever fills in "auto" brings it
    if ctx.is_enabled("elasticity") and ctx.target.version < (0, 19, 8):
        return  # elasticity chooses it
    is_part = is_json and list(data) == ["zero_optimization"]  # something else completes such a file
    yield ctx.finding(
        f"neither {ctx.key(_MICRO)} nor {ctx.key(_TOTAL)} is given",
        _MICRO,
        severity="warning" if is_part else "error",
        notes=["DeepSpeed refuses this once every rank has started"],
        fix=Fix(
            f"set {ctx.key(_MICRO)}, the sequences a rank computes at once",
            {_MICRO: 1},
            effect="decides memory and speed",
        ),
    )


@gate(
    "BT001 global-batch-is-not-the-product",
    upstream="asserts",
    cites=Cite("runtime/config.py", "Check batch related parameters. train_batch_size is not equal"),
    needs=("world size",),
    when=lambda ctx: ctx.tensor_parallel_size == 1 or ctx.run.kind == "spec",
)
def wrong_global_batch(ctx: Context) -> Findings:
    """A global batch that the ranks cannot make.

    `train.global_batch_size` = `train.per_device_train_batch_size` x data-parallel ranks x
    `train.gradient_accumulation_steps`, with data-parallel ranks = world / (tensor x pipeline x sequence). One of the
    three may be left out. (For a DeepSpeed JSON with AutoTP see `global-batch-counted-over-tensor-ranks`.)

    Why: DeepSpeed asserts it while it reads the configuration, on every rank, after the job has been scheduled. Under
    `python -O` it trains with another batch than the file sets.

    Example:
        train.per_device_train_batch_size: 2
        train.global_batch_size: 250
        launch.num_gpus: 4
    """
    ranks = ctx.data_parallel_size
    train = ctx.run.spec.train
    total, micro, steps = train.global_batch_size, train.per_device_train_batch_size, train.gradient_accumulation_steps
    if ranks is None or total is None:
        return
    data_ranks = f"{ranks} data-parallel {_name_ranks(ranks)}"
    sequences_at_once = (micro or 1) * ranks
    unit = sequences_at_once * (steps or 1)
    is_wrong_product = micro is not None and steps is not None and unit != total
    is_indivisible = total % unit != 0
    if is_wrong_product:
        message = f"a global batch of {total} is not {micro} x {data_ranks} x {steps} accumulation steps = {unit}"
        fix = _fix_total(ctx, unit)
        if total % sequences_at_once == 0:
            fix = ctx.fix_to_remove(_STEPS, effect=f"{total // sequences_at_once} accumulation steps")
        yield _report_batch(ctx, message, f"{unit}?", fix)
    elif is_indivisible:
        of_micro = f" of micro-batch {micro}" if micro else ""
        of_steps = f" with {steps} accumulation steps" if steps else ""
        message = f"a global batch of {total} does not divide over {data_ranks}{of_micro}{of_steps}"
        fix = _fix_total(ctx, max(unit, total // unit * unit))
        yield _report_batch(ctx, message, f"{total} = {unit} x {total / unit:g}", fix)


def _report_batch(ctx: Context, message: str, label: str, fix: Fix) -> Finding:
    return ctx.finding(
        message,
        _TOTAL,
        label=label,
        related=[(_MICRO, "per rank"), (_STEPS, "micro-batches a step")],
        notes=[_describe_world(ctx)],
        fix=fix,
    )


def _name_ranks(count: int) -> str:
    return "rank" if count == 1 else "ranks"


def _describe_world(ctx: Context) -> str:
    d = ctx.run.parallel_dims
    degrees = f"tensor {d.tensor} x pipeline {d.pipeline} x sequence {d.sequence}"
    return f"{d.world_size} {_name_ranks(d.world_size or 0)} / ({degrees}) = {d.data} data-parallel"


@gate(
    "BT004 global-batch-for-no-number-of-ranks",
    upstream="asserts",
    cites=Cite("runtime/config.py", "Check batch related parameters. train_batch_size is not equal"),
)
def global_batch_for_no_world(ctx: Context) -> Findings:
    """A global batch that no number of ranks can make.

    Where the number of ranks is not known: `train.global_batch_size` is a multiple of
    `train.per_device_train_batch_size` x `train.gradient_accumulation_steps`, as far as they are given. With the ranks
    known, BT001 checks the whole equation.

    Why: DeepSpeed asserts the equation while it reads the configuration, on every rank, after the job has been
    scheduled.

    Example:
        train.per_device_train_batch_size: 3
        train.gradient_accumulation_steps: 5
        train.global_batch_size: 64
    """
    train = ctx.run.spec.train
    unit = (train.per_device_train_batch_size or 1) * (train.gradient_accumulation_steps or 1)
    total = train.global_batch_size
    if ctx.world_size is None and total is not None and total % unit:
        yield ctx.finding(
            f"a global batch of {total} is no multiple of the {unit} sequences that one rank computes a step",
            _TOTAL,
            related=[(_MICRO, "at once"), (_STEPS, "micro-batches a step")],
            notes=["no number of data-parallel ranks divides it"],
            fix=_fix_total(ctx, max(unit, total // unit * unit)),
        )


@gate(
    "BT003 degrees-that-do-not-divide-the-world",
    upstream="crashes",
    cites=Cite("runtime/pipe/module.py", "must divide distributed world size"),
    needs=("world size",),
)
def indivisible_world(ctx: Context) -> Findings:
    """Degrees that do not divide the world size.

    The ranks divide by tensor x pipeline x sequence degree, and there are at least that many.

    Why: DeepSpeed finds out while it makes its process groups: with an IndexError for AutoTP, a bare AssertionError
    when there are too few ranks, a message about `num_stages` for a pipeline (run on 0.19.8).

    Example:
        train.per_device_train_batch_size: 1
        parallel.tensor_parallel_size: 4
        launch.num_gpus: 6

    Use instead:
        train.per_device_train_batch_size: 1
        parallel.tensor_parallel_size: 3
        launch.num_gpus: 6
    """
    dims = ctx.run.parallel_dims
    world = dims.world_size
    if world is None or dims.data is not None:
        return
    all_degrees = {"tensor": dims.tensor, "pipeline": dims.pipeline, "sequence": dims.sequence}
    degrees = {name: degree for name, degree in all_degrees.items() if degree > 1}
    key, *other_keys = (f"parallel.{name}_parallel_size" for name in degrees)
    ranks = "1 rank is" if world == 1 else f"{world} ranks are"
    relation = "fewer than" if world < dims.model_parallel_size else "no multiple of"
    factors = " x ".join(f"{name} {degree}" for name, degree in degrees.items())
    product = f" = {dims.model_parallel_size}" if len(degrees) > 1 else ""
    yield ctx.finding(
        f"{ranks} {relation} {factors}{product}",
        key,
        related=[*((other, "and here") for other in other_keys), ("launch.num_gpus", "the ranks are set here")],
        notes=["DeepSpeed fails on this when it makes its process groups, on every rank"],
        fix=Fix(
            f"set {ctx.key(key)} to {_choose_divisor(world)}, or choose degrees whose product divides the ranks",
            {key: _choose_divisor(world), **dict.fromkeys(other_keys, 1)},
            effect="other memory and speed",
        ),
    )


def _choose_divisor(world: int) -> int:
    return next((d for d in (2, 3, 5, 7) if world % d == 0 and d < world), 1)


@gate(
    "BT005 global-batch-counted-over-tensor-ranks",
    severity=("error", "warning"),
    cites=Cite("runtime/config.py", "micro_batch_per_gpu * gradient_acc_step * world_size"),
    since="0.16.4",
    when=lambda ctx: (
        ctx.tensor_parallel_size > 1 and ctx.run.kind == "deepspeed-json" and ctx.has_key("train_batch_size")
    ),
)
def global_batch_over_tensor_ranks(ctx: Context) -> Findings:
    """A global batch under AutoTP that DeepSpeed counts over the whole world.

    `train_batch_size` in a DeepSpeed JSON with a tensor degree.

    Why: The ranks of a tensor group work on the same samples, so a step consumes micro-batch x accumulation x (ranks /
    tensor degree) sequences. DeepSpeed multiplies by all ranks instead. The true number is refused, or divided down to
    other accumulation steps ("Gradient accumulation steps: 0 has to be greater than 0"); a number that is accepted is
    too large by the tensor degree, and so are its sample counts and samples a second (run on 0.19.8 with 2 and 4
    ranks). Leave the key out. (In a run spec the harness does.)

    Example: {
      "train_batch_size": 4,
      "train_micro_batch_size_per_gpu": 2,
      "tensor_parallel": {"autotp_size": 2}
    }

    Use instead: {
      "train_micro_batch_size_per_gpu": 2,
      "gradient_accumulation_steps": 1,
      "tensor_parallel": {"autotp_size": 2}
    }
    """
    train = ctx.run.spec.train
    total, micro, steps = train.global_batch_size, train.per_device_train_batch_size, train.gradient_accumulation_steps
    if total is None:
        return
    world = ctx.world_size
    is_refused = world is not None and not _is_possible_batch(total, micro, steps, world)
    if is_refused:
        message = f"DeepSpeed makes a global batch of {total} over all {world} ranks, and refuses it"
    else:
        sequences = f": a step consumes {total // ctx.tensor_parallel_size}" if world is not None else ""
        message = f"DeepSpeed counts {ctx.key(_TOTAL)} {total} over tensor ranks as well{sequences}"
    yield ctx.finding(
        message,
        _TOTAL,
        severity="error" if is_refused else "warning",
        label="not the sequences of a step",
        related=[("parallel.tensor_parallel_size", "these ranks work on the same samples")],
        notes=[f"sample counts come out {ctx.tensor_parallel_size} times too large"],
        fix=Fix(
            f"remove {ctx.key(_TOTAL)} and set {ctx.key(_STEPS)}",
            _replace_total(ctx, total, micro, steps, is_refused=is_refused),
            effect="the same micro-batches, without the wrong count",
        ),
    )


def _is_possible_batch(total: int, micro: int | None, steps: int | None, world: int) -> bool:
    unit = (micro or 1) * (steps or 1) * world
    return total == unit if micro and steps else total % unit == 0


def _replace_total(
    ctx: Context, total: int, micro: int | None, steps: int | None, *, is_refused: bool
) -> dict[str, int | None]:
    """Sizes without the total: for the requested sequences if DeepSpeed refuses, else those that it trains with now."""
    ranks = (ctx.data_parallel_size if is_refused or ctx.world_size is None else ctx.world_size) or 1
    micro = micro or max(1, total // (ranks * (steps or 1)))
    return {_TOTAL: None, _MICRO: micro, _STEPS: steps or max(1, total // (micro * ranks))}
