"""A warm-up that goes down.

## What it checks
`warmup_min_lr` above `warmup_max_lr` (or above the optimizer's rate, where WarmupLR takes that), `cycle_min_lr` above
`cycle_max_lr`, and `warmup_min_ratio` above 1.

## Why it fails
DeepSpeed goes from the one to the other whichever is larger: training starts at the high rate and falls (run on
0.19.8: 0.01, 0.0043, 0.001).

## Example
```yaml
zero:
  stage: 1
optimizer:
  learning_rate: 1.0e-5
deepspeed:
  scheduler:
    type: WarmupLR
    params:
      warmup_min_lr: 1.0e-4
      warmup_max_lr: 1.0e-5
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
    type: WarmupLR
    params:
      warmup_min_lr: 1.0e-6
      warmup_max_lr: 1.0e-5
      warmup_num_steps: 10
```
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.findings import Finding, Fix
from harness.gates.registry import Cite, Context, gate

_PAIRS = (("warmup_min_lr", "warmup_max_lr"), ("cycle_min_lr", "cycle_max_lr"), ("warmup_min_ratio", ""))


@gate(
    "OP029",
    "warm-up-from-above",
    upstream="silent",
    cites=(Cite("runtime/lr_schedules.py", "self.delta_lrs = [big - small for big, small in zip("),),
    when=lambda ctx: isinstance(ctx.scheduler.get("params"), dict),
)
def check(ctx: Context) -> Iterator[Finding]:
    """From low to high."""
    params = ctx.scheduler["params"]
    for low_key, high_key in _PAIRS:
        low, high = params.get(low_key), params.get(high_key, ctx.optimizer.params.get("lr") if high_key else 1.0)
        if low_key == "cycle_min_lr" and high_key not in params:
            continue
        if not all(isinstance(n, (int, float)) and not isinstance(n, bool) for n in (low, high)) or low <= high:
            continue
        place = f"deepspeed.scheduler.params.{low_key}"
        yield ctx.finding(
            f"{ctx.key(place)} is {low:g}, above the peak of {high:g}: the rate starts high and falls",
            place,
            related=[(f"deepspeed.scheduler.params.{high_key}", "the peak")],
            fix=Fix(f"set {ctx.key(place)} to {high / 10:g}", {place: high / 10}, effect="the rate rises to its peak"),
            severity="warning",
        )
