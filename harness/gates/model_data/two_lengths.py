"""Two lengths of training.

## What it checks
`train.max_steps` and `train.num_train_epochs` are not both written.

## Why it fails
`max_steps` wins, and the epochs are not looked at: the run is longer or shorter than one of the two says.

## Example
```yaml
train:
  max_steps: 100
  num_train_epochs: 3
```

## Use instead
```yaml
train:
  max_steps: 100
```
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.findings import Finding, Fix
from harness.gates.registry import Context, gate


@gate("MD006", "two-lengths-of-training", upstream="silent", needs=("a run spec",))
def check(ctx: Context) -> Iterator[Finding]:
    """One length."""
    train = ctx.run.spec.train
    if train.max_steps is None or train.num_train_epochs is None:
        return
    yield ctx.finding(
        f"{ctx.key('train.num_train_epochs')} is not read, since `train.max_steps` is {train.max_steps}",
        "train.num_train_epochs",
        severity="warning",
        label="has no effect",
        related=[("train.max_steps", "this one decides")],
        fix=Fix("remove one of the two", {"train.num_train_epochs": None}, safe=True),
    )
