"""Two learning rates, one of them unused.

## What it checks
A rate in the scheduler (`warmup_max_lr`, `cycle_max_lr`) that is not the optimizer's.

## Why it fails
DeepSpeed's schedulers set the optimizer's rate; they do not scale it. With both written and different, the
scheduler's counts and `lr` is never used, not even in the first step (run on 0.19.8). WarmupCosineLR alone scales
`lr`.

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
      warmup_min_lr: 1.0e-6
      warmup_max_lr: 3.0e-4
      warmup_num_steps: 10
```

## Use instead
```yaml
zero:
  stage: 1
optimizer:
  learning_rate: 3.0e-4
deepspeed:
  scheduler:
    type: WarmupLR
    params:
      warmup_min_lr: 1.0e-6
      warmup_max_lr: 3.0e-4
      warmup_num_steps: 10
```
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.findings import Finding, Fix
from harness.gates.optimizer.known import schedule
from harness.gates.registry import Cite, Context, gate

_PEAK = {"WarmupLR": "warmup_max_lr", "WarmupDecayLR": "warmup_max_lr", "OneCycle": "cycle_max_lr"}


@gate(
    "OP028",
    "rate-replaced-by-the-scheduler",
    upstream="silent",
    cites=(Cite("runtime/lr_schedules.py", "param_group['lr'] = lr"),),
    when=lambda ctx: schedule(ctx) in _PEAK,
)
def check(ctx: Context) -> Iterator[Finding]:
    """One rate, written twice, is still one rate."""
    key = _PEAK[schedule(ctx)]
    params = ctx.scheduler.get("params")
    peak = params.get(key) if isinstance(params, dict) else None
    rate = ctx.optimizer.params.get("lr")
    both = all(isinstance(n, (int, float)) and not isinstance(n, bool) and n > 0 for n in (peak, rate))
    own = ctx.optimizer.key == "optimizer"
    place = "optimizer.learning_rate" if own else "deepspeed.optimizer.params.lr"
    if not both or peak is None or rate is None or abs(peak - rate) <= 1e-6 * rate or not ctx.source.has_key(place):
        return
    yield ctx.finding(
        f"the optimizer's rate of {rate:g} is replaced by the scheduler's {peak:g}",
        place,
        label="never used",
        related=[(f"deepspeed.scheduler.params.{key}", "this one counts")],
        fix=Fix(f"set {ctx.key(place)} to {peak:g} too", {place: peak}, safe=True),
        severity="warning",
    )
