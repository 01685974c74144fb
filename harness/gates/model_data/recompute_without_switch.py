"""Options of activation checkpointing that is off.

## What it checks
`train.gradient_checkpointing_use_reentrant` and `train.offload_activations` are on only with
`train.gradient_checkpointing: true`.

## Why it fails
They say how activations are computed anew. Without `gradient_checkpointing` all of them are kept on the accelerator.

## Example
```yaml
train:
  offload_activations: true
```

## Use instead
```yaml
train:
  gradient_checkpointing: true
  offload_activations: true
```
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.findings import Finding, Fix
from harness.gates.registry import Context, gate


@gate("MD031", "recomputation-options-without-recomputation", upstream="silent", needs=("a run spec",))
def check(ctx: Context) -> Iterator[Finding]:
    """The switch that they belong to."""
    train = ctx.run.spec.train
    if train.gradient_checkpointing:
        return
    for name in ("gradient_checkpointing_use_reentrant", "offload_activations"):
        if getattr(train, name):
            yield ctx.finding(
                f"`train.{name}` has no effect without `train.gradient_checkpointing: true`",
                f"train.{name}",
                severity="warning",
                label="has no effect",
                fix=Fix(
                    "set `train.gradient_checkpointing: true`",
                    {"train.gradient_checkpointing": True},
                    effect="computes every layer twice, to save memory",
                ),
            )
