"""No batch size at all.

## What it checks
At least one of `train.per_device_train_batch_size` and `train.global_batch_size` is given.

## Why it fails
DeepSpeed refuses it while it reads the configuration, on every rank: "Either train_batch_size or
train_micro_batch_size_per_gpu needs to be provided".

## Example
```yaml
train:
  per_device_train_batch_size: null
```

## Use instead
```yaml
train:
  per_device_train_batch_size: 1
```
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.findings import Finding, Fix
from harness.gates.registry import Cite, Context, gate

_KEYS = ("train_batch_size", "train_micro_batch_size_per_gpu")


@gate(
    "BT002",
    "no-batch-size",
    upstream="raises",
    cites=(
        Cite("runtime/config.py", "Either train_batch_size or train_micro_batch_size_per_gpu needs to be provided"),
    ),
)
def check(ctx: Context) -> Iterator[Finding]:
    """One corner of the triangle must be there."""
    train = ctx.run.spec.train
    if train.per_device_train_batch_size or train.global_batch_size:
        return
    if ctx.run.kind == "deepspeed-json" and any(ctx.source.data.get(key) == "auto" for key in _KEYS):
        return  # whoever fills in "auto" brings it
    if ctx.is_enabled("elasticity") and ctx.target.version < (0, 19, 8):
        return  # elasticity chooses it
    part = ctx.run.kind == "deepspeed-json" and list(ctx.source.data) == ["zero_optimization"]
    yield ctx.finding(
        f"neither {ctx.key('train.per_device_train_batch_size')} nor {ctx.key('train.global_batch_size')} is given",
        "train.per_device_train_batch_size",
        notes=["DeepSpeed refuses this once every rank has started"],
        fix=Fix(
            f"set {ctx.key('train.per_device_train_batch_size')}, the sequences a rank computes at once",
            {"train.per_device_train_batch_size": 1},
            effect="decides memory and speed",
        ),
        severity="warning" if part else "error",  # such a file is a part that something else completes
    )
