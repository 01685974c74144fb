"""Two first steps that train nothing.

## What it checks
WarmupLR, WarmupDecayLR and WarmupCosineLR that start at 0 (the default of `warmup_min_lr` and `warmup_min_ratio`),
for runs of at most 100 steps whose length is known.

## Why it fails
The rate is set to the minimum when the scheduler is made and once more for its index 0: the first two optimizer steps
run at it. At 0 they train nothing, which is a share of a short run (run on 0.19.8; before 0.15.3 the first step ran
at the full rate).

## Example
```yaml
train:
  max_steps: 20
zero:
  stage: 1
deepspeed:
  scheduler:
    type: WarmupLR
    params:
      warmup_num_steps: 5
```

## Use instead
```yaml
train:
  max_steps: 20
zero:
  stage: 1
deepspeed:
  scheduler:
    type: WarmupLR
    params:
      warmup_min_lr: 1.0e-6
      warmup_num_steps: 5
```
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.findings import Finding, Fix
from harness.gates.optimizer.known import schedule
from harness.gates.registry import Cite, Context, gate


@gate(
    "OP033",
    "first-steps-at-zero",
    upstream="silent",
    since="0.15.3",
    cites=(Cite("runtime/lr_schedules.py", "self._last_lr = update_lr(self.optimizer.param_groups, self.get_lr())"),),
    when=lambda ctx: schedule(ctx) in ("WarmupLR", "WarmupDecayLR", "WarmupCosineLR"),
)
def check(ctx: Context) -> Iterator[Finding]:
    """A rate of 0 trains nothing."""
    steps = ctx.run.spec.train.max_steps
    cosine = schedule(ctx) == "WarmupCosineLR"
    key = "warmup_min_ratio" if cosine else "warmup_min_lr"
    if steps is None or steps > 100 or ctx.ds(f"scheduler.params.{key}", 0) != 0:
        return
    place, low = f"deepspeed.scheduler.params.{key}", 0.1 if cosine else 1e-6
    yield ctx.finding(
        f"the first 2 of {steps} steps run at a learning rate of 0",
        place if ctx.has_key(f"scheduler.params.{key}") else "deepspeed.scheduler.type",
        notes=[f"the scheduler starts at `{key}`, and its index 0 is there too"],
        fix=Fix(f"set {ctx.key(place)} to {low:g}", {place: low}, effect="the first steps train a little"),
        severity="info",
    )
