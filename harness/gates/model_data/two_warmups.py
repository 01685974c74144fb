"""Two lengths of the warm-up.

## What it checks
`scheduler.warmup_steps` and `scheduler.warmup_ratio` are not both written.

## Why it fails
`warmup_steps` wins, also when it is 0, and the ratio is not looked at.

## Example
```yaml
scheduler:
  warmup_steps: 2
  warmup_ratio: 0.1
```

## Use instead
```yaml
scheduler:
  warmup_steps: 2
```
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.findings import Finding, Fix
from harness.gates.registry import Context, gate


@gate("MD007", "two-lengths-of-warmup", upstream="silent", needs=("a run spec",))
def check(ctx: Context) -> Iterator[Finding]:
    """One length."""
    scheduler = ctx.run.spec.scheduler
    if scheduler.warmup_steps is None or "warmup_ratio" not in scheduler.model_fields_set:
        return
    yield ctx.finding(
        f"{ctx.key('scheduler.warmup_ratio')} is not read, since `scheduler.warmup_steps` is {scheduler.warmup_steps}",
        "scheduler.warmup_ratio",
        severity="warning",
        label="has no effect",
        related=[("scheduler.warmup_steps", "this one decides")],
        fix=Fix("remove one of the two", {"scheduler.warmup_ratio": None}, safe=True),
    )
