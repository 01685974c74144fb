"""A global batch that the ranks cannot make.

## What it checks
`train.global_batch_size` = `train.per_device_train_batch_size` x data-parallel ranks x
`train.gradient_accumulation_steps`, with data-parallel ranks = world / (tensor x pipeline x sequence). One of the
three may be left out. (For a DeepSpeed JSON with AutoTP see `global-batch-counted-over-tensor-ranks`.)

## Why it fails
DeepSpeed asserts it while it reads the configuration, on every rank, after the job has been scheduled. Under `python
-O` it trains with another batch than was asked.

## Example
```yaml
train:
  per_device_train_batch_size: 2
  global_batch_size: 250
launch:
  num_gpus: 4
```

## Use instead
```yaml
train:
  per_device_train_batch_size: 2
  global_batch_size: 248
launch:
  num_gpus: 4
```
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.findings import Finding, Fix
from harness.gates.registry import Cite, Context, gate


@gate(
    "BT001",
    "global-batch-is-not-the-product",
    upstream="asserts",
    cites=(Cite("runtime/config.py", "Check batch related parameters. train_batch_size is not equal"),),
    needs=("world size",),
    when=lambda ctx: ctx.tensor_parallel_size == 1 or ctx.run.kind == "spec",
)
def check(ctx: Context) -> Iterator[Finding]:
    """global = micro x data-parallel ranks x accumulation."""
    train, data = ctx.run.spec.train, ctx.run.parallel_dims.data
    total, micro, steps = train.global_batch_size, train.per_device_train_batch_size, train.gradient_accumulation_steps
    if data is None or total is None:
        return
    if micro is not None and steps is not None and micro * data * steps != total:
        yield _wrong_product(ctx, total, micro, data, steps)
    elif (unit := (micro or 1) * data * (steps or 1)) and total % unit:
        yield _does_not_divide(ctx, total, micro, data, steps, unit)


def _wrong_product(ctx: Context, total: int, micro: int, data: int, steps: int) -> Finding:
    return ctx.finding(
        f"a global batch of {total} is not {micro} x {data} data-parallel {_ranks(data)}"
        f" x {steps} accumulation steps = {micro * data * steps}",
        "train.global_batch_size",
        label=f"{micro * data * steps}?",
        related=[
            ("train.per_device_train_batch_size", "per rank"),
            ("train.gradient_accumulation_steps", "micro-batches a step"),
        ],
        notes=[_world(ctx)],
        fix=Fix(
            f"remove {ctx.key('train.gradient_accumulation_steps')}"
            if total % (micro * data) == 0
            else f"set {ctx.key('train.global_batch_size')} to {micro * data * steps}",
            {"train.gradient_accumulation_steps": None}
            if total % (micro * data) == 0
            else {"train.global_batch_size": micro * data * steps},
            effect=f"{total // (micro * data)} accumulation steps"
            if total % (micro * data) == 0
            else "changes what is trained",
        ),
    )


def _does_not_divide(ctx: Context, total: int, micro: int | None, data: int, steps: int | None, unit: int) -> Finding:
    better = max(unit, total // unit * unit)
    of_micro = f" of micro-batch {micro}" if micro else ""
    of_steps = f" with {steps} accumulation steps" if steps else ""
    return ctx.finding(
        f"a global batch of {total} does not divide over {data} data-parallel {_ranks(data)}{of_micro}{of_steps}",
        "train.global_batch_size",
        label=f"{total} = {unit} x {total / unit:g}",
        related=[
            ("train.per_device_train_batch_size", "per rank"),
            ("train.gradient_accumulation_steps", "micro-batches a step"),
        ],
        notes=[_world(ctx)],
        fix=Fix(
            f"set {ctx.key('train.global_batch_size')} to {better}",
            {"train.global_batch_size": better},
            effect="changes what is trained",
        ),
    )


def _ranks(count: int) -> str:
    return "rank" if count == 1 else "ranks"


def _world(ctx: Context) -> str:
    d = ctx.run.parallel_dims
    degrees = f"tensor {d.tensor} x pipeline {d.pipeline} x sequence {d.sequence}"
    return f"{d.world_size} {_ranks(d.world_size or 0)} / ({degrees}) = {d.data} data-parallel"
