"""A warm-up and a decay that do not fit into the run.

## What it checks
`scheduler.type: warmup_stable_decay`, where warm-up and decay take more steps than `train.max_steps`.

## Why it fails
`transformers` counts the decay back from the end: the rate would jump from the warm-up into the middle of the decay.
The run is refused when it starts (OP110), which is also told for a run whose steps follow from its epochs.

## Example
```yaml
train:
  max_steps: 100
scheduler:
  type: warmup_stable_decay
  warmup_steps: 50
  decay_steps: 80
```

## Use instead
```yaml
train:
  max_steps: 100
scheduler:
  type: warmup_stable_decay
  warmup_steps: 50
  decay_steps: 50
```
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from harness.findings import Finding, Fix
from harness.gates.registry import Context, gate


@gate("OP040", "decay-that-does-not-fit-the-run", upstream="silent", needs=("a run spec",))
def check(ctx: Context) -> Iterator[Finding]:
    """Warm-up and decay within the run."""
    schedule, steps = ctx.run.spec.scheduler, ctx.run.spec.train.max_steps
    if schedule.type != "warmup_stable_decay" or steps is None:
        return
    warmup = schedule.warmup_steps if schedule.warmup_steps is not None else math.ceil(schedule.warmup_ratio * steps)
    decay = schedule.decay_steps if schedule.decay_steps is not None else math.ceil(schedule.decay_ratio * steps)
    if warmup + decay <= steps:
        return
    key = "scheduler.decay_steps" if schedule.decay_steps is not None else "scheduler.decay_ratio"
    left = max(0, steps - warmup)
    yield ctx.finding(
        f"a warm-up of {warmup} steps and a decay of {decay} do not fit into {steps} steps",
        key,
        related=[("train.max_steps", "so long is trained")],
        fix=Fix(
            f"set {ctx.key('scheduler.decay_steps')} to {left}", {"scheduler.decay_steps": left}, effect="decays faster"
        ),
    )
