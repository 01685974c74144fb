"""A run without an end.

## What it checks
`train.max_steps` or `train.num_train_epochs` is given.

## Why it fails
Nothing says when training is over, and the learning rate schedule needs the number of steps.

## Example
```yaml
train:
  max_steps: null
```

## Use instead
```yaml
train:
  max_steps: 1000
```
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.findings import Finding, Fix
from harness.gates.registry import Context, gate


@gate("MD003", "no-training-length", upstream="raises", needs=("a run spec",))
def check(ctx: Context) -> Iterator[Finding]:
    """Steps or epochs."""
    train = ctx.run.spec.train
    if train.max_steps or train.num_train_epochs:
        return
    yield ctx.finding(
        "neither `train.max_steps` nor `train.num_train_epochs` is given",
        "train.max_steps",
        fix=Fix(
            "set `train.num_train_epochs` or `train.max_steps`",
            {"train.num_train_epochs": 1.0},
            effect="one pass over the data",
        ),
    )
