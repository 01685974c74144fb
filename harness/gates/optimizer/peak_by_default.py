"""A schedule that peaks at its own default.

## What it checks
`WarmupDecayLR` without `warmup_max_lr`, and `WarmupLR` without it up to DeepSpeed 0.17.1.

## Why it fails
The peak is then 0.001, whatever `optimizer.params.lr` says (run on 0.19.8: 5e-4 asked, 0.001 trained). WarmupLR takes
the optimizer's rate from 0.17.2 on; WarmupDecayLR still does not.

## Example
```yaml
zero:
  stage: 1
optimizer:
  learning_rate: 1.0e-5
deepspeed:
  scheduler:
    type: WarmupDecayLR
    params:
      total_num_steps: 100
      warmup_min_lr: 1.0e-6
      warmup_num_steps: 10
```

## Use instead
```yaml
zero:
  stage: 1
optimizer:
  learning_rate: 1.0e-5
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
from harness.gates.optimizer.known import schedule
from harness.gates.registry import Cite, Context, gate


@gate(
    "OP027",
    "peak-rate-by-default",
    upstream="silent",
    cites=(Cite("runtime/lr_schedules.py", "warmup_max_lr: float = 0.001,"),),
    when=lambda ctx: schedule(ctx) in ("WarmupDecayLR", "WarmupLR"),
)
def check(ctx: Context) -> Iterator[Finding]:
    """Write the peak."""
    name = schedule(ctx)
    inherits = name == "WarmupLR" and ctx.target.version >= (0, 17, 2)
    rate = ctx.optimizer.params.get("lr")
    if inherits or ctx.has_key("scheduler.params.warmup_max_lr") or rate == 0.001:
        return
    known = isinstance(rate, (int, float)) and not isinstance(rate, bool)
    place = "deepspeed.scheduler.params.warmup_max_lr"
    written = ctx.optimizer.key == "deepspeed.optimizer"
    yield ctx.finding(
        f"`{name}` peaks at 0.001"
        + (f", not at the optimizer's {rate:g}" if known else ", whatever the optimizer says"),
        "deepspeed.scheduler.type",
        related=[("deepspeed.optimizer.params.lr" if written else "optimizer.learning_rate", "replaced")],
        notes=["without `warmup_max_lr` the peak is 0.001"],
        fix=Fix(
            f"set {ctx.key(place)} to {rate if known else 0.001:g}",
            {place: rate if known else 0.001},
            effect="peaks at the optimizer's rate" if known else "the same, in writing",
        ),
        severity="error" if known else "warning",
    )
