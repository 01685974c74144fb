"""A global batch that no number of ranks can make.

## What it checks
Where the number of ranks is not known: `train.global_batch_size` is a multiple of `train.per_device_train_batch_size`
x `train.gradient_accumulation_steps`, as far as they are given. With the ranks known, BT001 looks at the whole
triangle.

## Why it fails
DeepSpeed asserts the triangle while it reads the configuration, on every rank, after the job has been scheduled.

## Example
```yaml
train:
  per_device_train_batch_size: 3
  gradient_accumulation_steps: 5
  global_batch_size: 64
```

## Use instead
```yaml
train:
  per_device_train_batch_size: 3
  gradient_accumulation_steps: 5
  global_batch_size: 60
```
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.findings import Finding, Fix
from harness.gates.registry import Cite, Context, gate


@gate(
    "BT004",
    "global-batch-for-no-number-of-ranks",
    upstream="asserts",
    cites=(Cite("runtime/config.py", "Check batch related parameters. train_batch_size is not equal"),),
)
def check(ctx: Context) -> Iterator[Finding]:
    """global is a multiple of micro x accumulation."""
    train = ctx.run.spec.train
    unit = (train.per_device_train_batch_size or 1) * (train.gradient_accumulation_steps or 1)
    total = train.global_batch_size
    if ctx.run.parallel_dims.world_size is not None or total is None or total % unit == 0:
        return
    better = max(unit, total // unit * unit)
    yield ctx.finding(
        f"a global batch of {total} is no multiple of the {unit} sequences that one rank computes a step",
        "train.global_batch_size",
        related=[
            ("train.per_device_train_batch_size", "at once"),
            ("train.gradient_accumulation_steps", "micro-batches a step"),
        ],
        notes=["no number of data-parallel ranks makes it whole"],
        fix=Fix(
            f"set {ctx.key('train.global_batch_size')} to {better}",
            {"train.global_batch_size": better},
            effect="changes what is trained",
        ),
    )
