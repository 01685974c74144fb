"""A schedule counted in micro-batches.

## What it checks
`total_num_steps` equal to `train.max_steps` times the accumulation steps.

## Why it fails
DeepSpeed steps a scheduler with the optimizer, once a global batch, not with every micro-batch. A schedule that is as
many times longer never comes to its end: the rate at the last step is still near the peak (read in 0.19.8).

## Example
```yaml
train:
  max_steps: 500
  per_device_train_batch_size: 1
  gradient_accumulation_steps: 8
zero:
  stage: 1
deepspeed:
  scheduler:
    type: WarmupDecayLR
    params:
      total_num_steps: 4000
      warmup_min_lr: 1.0e-6
      warmup_max_lr: 1.0e-5
      warmup_num_steps: 10
```

## Use instead
```yaml
train:
  max_steps: 500
  per_device_train_batch_size: 1
  gradient_accumulation_steps: 8
zero:
  stage: 1
deepspeed:
  scheduler:
    type: WarmupDecayLR
    params:
      total_num_steps: 500
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
    "OP036",
    "schedule-counted-in-micro-batches",
    upstream="silent",
    cites=(Cite("runtime/engine.py", "self.lr_scheduler.step(**(lr_kwargs or {}))"),),
    when=lambda ctx: schedule(ctx) in ("WarmupDecayLR", "WarmupCosineLR"),
)
def check(ctx: Context) -> Iterator[Finding]:
    """Scheduler steps are optimizer steps."""
    total, steps = ctx.ds("scheduler.params.total_num_steps"), ctx.run.spec.train.max_steps
    parts = ctx.run.batch.accumulation
    if steps is None or parts is None or parts < 2 or total != steps * parts:
        return
    place = "deepspeed.scheduler.params.total_num_steps"
    yield ctx.finding(
        f"{total} is {steps} steps x {parts} micro-batches, and a scheduler counts optimizer steps",
        place,
        related=[("train.max_steps", "so long is trained")],
        notes=[f"the run ends after 1/{parts} of the schedule, with the rate still high"],
        fix=Fix(f"set {ctx.key(place)} to {steps}", {place: steps}, effect="decays over the whole run"),
        severity="warning",
    )
