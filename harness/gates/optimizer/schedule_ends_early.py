"""Training that outlasts its schedule.

## What it checks
`total_num_steps` of WarmupDecayLR and WarmupCosineLR below `train.max_steps`.

## Why it fails
Scheduler steps are optimizer steps. After `total_num_steps` of them WarmupDecayLR is at 0 and stays there,
WarmupCosineLR at its floor of a ten-thousandth: the rest of the run trains nothing (run on 0.19.8).

## Example
```yaml
train:
  max_steps: 1000
zero:
  stage: 1
deepspeed:
  scheduler:
    type: WarmupDecayLR
    params:
      total_num_steps: 100
      warmup_min_lr: 1.0e-6
      warmup_max_lr: 1.0e-5
      warmup_num_steps: 10
```

## Use instead
```yaml
train:
  max_steps: 1000
zero:
  stage: 1
deepspeed:
  scheduler:
    type: WarmupDecayLR
    params:
      total_num_steps: 1000
      warmup_min_lr: 1.0e-6
      warmup_max_lr: 1.0e-5
      warmup_num_steps: 10
```
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.findings import Finding, Fix
from harness.gates.optimizer.known import schedule
from harness.gates.registry import Cite, Context, gate


@gate(
    "OP031",
    "schedule-ends-before-training",
    upstream="silent",
    cites=(Cite("runtime/lr_schedules.py", "float(self.total_num_steps - self.last_batch_iteration)"),),
    when=lambda ctx: schedule(ctx) in ("WarmupDecayLR", "WarmupCosineLR"),
)
def check(ctx: Context) -> Iterator[Finding]:
    """As many steps as are trained."""
    total, steps = ctx.ds("scheduler.params.total_num_steps"), ctx.run.spec.train.max_steps
    if steps is None or isinstance(total, bool) or not isinstance(total, (int, float)) or total >= steps:
        return
    place = "deepspeed.scheduler.params.total_num_steps"
    yield ctx.finding(
        f"the schedule ends after {total} of {steps} steps; the rest trains at a rate of about 0",
        place,
        related=[("train.max_steps", "so long is trained")],
        fix=Fix(f"set {ctx.key(place)} to {steps}", {place: steps}, effect="decays over the whole run"),
        severity="warning",
    )
