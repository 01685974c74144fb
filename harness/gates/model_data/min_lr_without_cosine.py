"""A minimum learning rate that the schedule does not have.

## What it checks
`scheduler.min_lr_ratio` above 0 with a `scheduler.type` other than `cosine`.

## Why it fails
Only the cosine ends at a share of the peak. A constant rate stays, a linear one falls to 0, whatever the ratio says.

## Example
```yaml
scheduler:
  type: linear
  min_lr_ratio: 0.1
```

## Use instead
```yaml
scheduler:
  type: cosine
  min_lr_ratio: 0.1
```
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.findings import Finding, Fix
from harness.gates.registry import Context, gate


@gate("MD008", "minimum-rate-without-cosine", upstream="silent", needs=("a run spec",))
def check(ctx: Context) -> Iterator[Finding]:
    """The end of a cosine."""
    scheduler = ctx.run.spec.scheduler
    if scheduler.type == "cosine" or not scheduler.min_lr_ratio:
        return
    ends = "falls to 0" if scheduler.type == "linear" else "stays at the peak"
    yield ctx.finding(
        f"{ctx.key('scheduler.min_lr_ratio')} is read by a cosine only; a {scheduler.type} schedule {ends}",
        "scheduler.min_lr_ratio",
        severity="warning",
        label="has no effect",
        related=[("scheduler.type", "the schedule is set here")],
        fix=Fix("remove it, or set `scheduler.type` to cosine", {"scheduler.min_lr_ratio": None}, safe=True),
    )
