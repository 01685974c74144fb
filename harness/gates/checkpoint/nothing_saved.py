"""A run that keeps nothing of what it trained.

## What it checks
`checkpoint.save_at_end: false` without a `checkpoint.save_steps`, and without `export.at_end`.

## Why it fails
Nothing is written but metrics: good for a measurement, not for a model.

## Example
```yaml
checkpoint:
  save_at_end: false
```

## Use instead
```yaml
checkpoint:
  save_at_end: true
```
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.findings import Finding, Fix
from harness.gates.registry import Context, gate


@gate("CK009", "training-that-saves-nothing", upstream="silent", needs=("a run spec",))
def check(ctx: Context) -> Iterator[Finding]:
    """Worth knowing before, not after."""
    spec = ctx.run.spec
    if spec.checkpoint.save_at_end or spec.checkpoint.save_steps is not None or spec.export.at_end:
        return
    yield ctx.finding(
        "no checkpoint is ever saved: the trained weights are gone when the run ends",
        "checkpoint.save_at_end",
        severity="info",
        notes=["fine for a measurement"],
        fix=Fix(
            "set `checkpoint.save_at_end` to true", {"checkpoint.save_at_end": True}, effect="a checkpoint at the end"
        ),
    )
