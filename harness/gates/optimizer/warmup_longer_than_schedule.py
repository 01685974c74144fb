"""A warm-up as long as the whole schedule.

## What it checks
`warmup_num_steps` (1000 when it is not given) not below `total_num_steps` of WarmupDecayLR and WarmupCosineLR.

## Why it fails
DeepSpeed warns and goes on. The rate is still rising when the schedule is over, and the step after the warm-up is at
0 or at the cosine's floor (run on 0.19.8).

## Example
```yaml
zero:
  stage: 1
deepspeed:
  scheduler:
    type: WarmupDecayLR
    params:
      total_num_steps: 100
      warmup_min_lr: 1.0e-6
      warmup_max_lr: 1.0e-5
      warmup_num_steps: 1000
```

## Use instead
```yaml
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
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.findings import Finding, Fix
from harness.gates.optimizer.known import number, schedule
from harness.gates.registry import Cite, Context, gate


@gate(
    "OP030",
    "warm-up-longer-than-the-schedule",
    upstream="silent",
    cites=(Cite("runtime/lr_schedules.py", "total_num_steps {} is less than warmup_num_steps {}"),),
    when=lambda ctx: schedule(ctx) in ("WarmupDecayLR", "WarmupCosineLR"),
)
def check(ctx: Context) -> Iterator[Finding]:
    """Leave steps to decay in."""
    if ctx.is_auto("scheduler.params.warmup_num_steps"):
        return
    total = ctx.ds("scheduler.params.total_num_steps")
    given = ctx.ds("scheduler.params.warmup_num_steps")
    warmup = 1000 if given is None else given
    whole = all(isinstance(n, (int, float)) and number(n) is not None for n in (total, warmup))
    if not whole or warmup < total:
        return
    place = "deepspeed.scheduler.params.warmup_num_steps"
    fewer = max(1, int(total) // 10)
    words = "" if given is not None else ", which is the default"
    yield ctx.finding(
        f"the warm-up of {warmup} steps{words} takes the whole schedule of {total}",
        "deepspeed.scheduler.params.total_num_steps" if given is None else place,
        related=[("deepspeed.scheduler.params.total_num_steps", "all steps")] if given is not None else [],
        notes=["the peak is never trained at; afterwards the rate is 0 or the cosine's floor"],
        fix=Fix(f"set {ctx.key(place)} to {fewer}", {place: fewer}, effect="reaches the peak, then decays"),
        severity="error" if warmup > total else "warning",
    )
