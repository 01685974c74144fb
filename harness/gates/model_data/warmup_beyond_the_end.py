"""A warm-up that the run does not outlive.

## What it checks
`scheduler.warmup_steps` against `train.max_steps`.

## Why it fails
The rate is still rising when the run ends: the peak in `optimizer.learning_rate` is never reached, and nothing
decays.

## Example
```yaml
train:
  max_steps: 100
scheduler:
  warmup_steps: 500
```

## Use instead
```yaml
train:
  max_steps: 100
scheduler:
  warmup_steps: 10
```
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.findings import Finding, Fix
from harness.gates.registry import Context, gate


@gate("MD016", "warmup-longer-than-the-run", upstream="silent", needs=("a run spec",))
def check(ctx: Context) -> Iterator[Finding]:
    """Shorter than the run."""
    warmup, steps = ctx.run.spec.scheduler.warmup_steps, ctx.run.spec.train.max_steps
    if warmup is None or steps is None or warmup < steps:
        return
    key, better = "scheduler.warmup_steps", steps // 10
    yield ctx.finding(
        f"{ctx.key(key)} is {warmup} and the run ends after {steps} steps: the rate never reaches its peak",
        key,
        severity="warning",
        related=[("train.max_steps", "the run ends here")],
        fix=Fix(f"set {ctx.key(key)} to {better}", {key: better}, effect="the rate reaches its peak"),
    )
