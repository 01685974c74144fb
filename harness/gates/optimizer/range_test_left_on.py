"""A learning-rate range test in a training run.

## What it checks
`scheduler.type: LRRangeTest`.

## Why it fails
It is made to find a rate, not to train: the rate starts at `lr_range_test_min_lr`, whatever the optimizer says, and
grows without a bound until the loss diverges.

## Example
```yaml
zero:
  stage: 1
deepspeed:
  scheduler:
    type: LRRangeTest
    params:
      lr_range_test_min_lr: 1.0e-6
```

## Use instead
```yaml
zero:
  stage: 1
deepspeed:
  scheduler:
    type: WarmupLR
    params:
      warmup_min_lr: 1.0e-6
      warmup_num_steps: 10
```
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.findings import Finding, Fix
from harness.gates.optimizer.known import schedule
from harness.gates.registry import Cite, Context, gate


@gate(
    "OP035",
    "range-test-left-on",
    upstream="silent",
    cites=(Cite("runtime/lr_schedules.py", "return (1 + self.step_rate * self.interval_fn())"),),
    when=lambda ctx: schedule(ctx) == "LRRangeTest",
)
def check(ctx: Context) -> Iterator[Finding]:
    """A test is no training."""
    place = "deepspeed.scheduler"
    yield ctx.finding(
        "a learning-rate range test raises the rate until training diverges",
        f"{place}.type",
        notes=["it shows which rates can be used; train with another scheduler afterwards"],
        fix=Fix(f"remove {ctx.key(place)}", {place: None}, effect="the rate is the optimizer's"),
        severity="warning",
    )
