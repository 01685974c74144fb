"""OneCycle and Adam's betas.

## What it checks
`scheduler.type: OneCycle` with `cycle_momentum` (the default) and an Adam whose `betas` are written.

## Why it fails
OneCycle cycles the first beta between `cycle_min_mom` and `cycle_max_mom` and sets the second one to 0.99, from the
first step on; what `optimizer.params.betas` says is never used (read in 0.19.8).

## Example
```yaml
zero:
  stage: 1
optimizer:
  learning_rate: 1.0e-4
  betas: [0.9, 0.95]
deepspeed:
  scheduler:
    type: OneCycle
    params:
      cycle_min_lr: 1.0e-6
      cycle_max_lr: 1.0e-4
```

## Use instead
```yaml
zero:
  stage: 1
optimizer:
  learning_rate: 1.0e-4
  betas: [0.9, 0.95]
deepspeed:
  scheduler:
    type: OneCycle
    params:
      cycle_min_lr: 1.0e-6
      cycle_max_lr: 1.0e-4
      cycle_momentum: false
```
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.findings import Finding, Fix
from harness.gates.optimizer.known import schedule
from harness.gates.registry import Cite, Context, gate


@gate(
    "OP034",
    "one-cycle-replaces-betas",
    upstream="silent",
    cites=(Cite("runtime/lr_schedules.py", "self.min_moms = [(mom, 0.99) for mom in"),),
    when=lambda ctx: schedule(ctx) == "OneCycle",
)
def check(ctx: Context) -> Iterator[Finding]:
    """The second beta becomes 0.99."""
    own = ctx.optimizer.key == "optimizer"
    place = "optimizer.betas" if own else "deepspeed.optimizer.params.betas"
    betas = ctx.optimizer.params.get("betas")
    cycled = ctx.ds("scheduler.params.cycle_momentum", True)
    if not cycled or not ctx.source.has_key(place) or not isinstance(betas, (list, tuple)) or len(betas) != 2:
        return
    switch = "deepspeed.scheduler.params.cycle_momentum"
    yield ctx.finding(
        f"`OneCycle` replaces {ctx.key(place)}: the second one becomes 0.99, not {betas[1]}",
        place,
        label="never used",
        related=[("deepspeed.scheduler.type", "cycles the momentum unless told not to")],
        fix=Fix(f"set {ctx.key(switch)} to false", {switch: False}, effect="the betas stay as written"),
        severity="warning",
    )
