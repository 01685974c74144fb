"""A scheduler block without a type.

## What it checks
A DeepSpeed `scheduler` block without `type`, or with an empty one.

## Why it fails
DeepSpeed has no scheduler then, and says nothing: the rate stays where the optimizer has it (run on 0.19.8).

## Example
```yaml
zero:
  stage: 1
deepspeed:
  scheduler:
    params:
      warmup_num_steps: 10
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
    "OP022",
    "scheduler-without-type",
    upstream="silent",
    cites=(Cite("runtime/config.py", "return SCHEDULER_TYPE_DEFAULT"),),
    when=lambda ctx: bool(ctx.scheduler),
)
def check(ctx: Context) -> Iterator[Finding]:
    """A block needs a name."""
    if schedule(ctx) or ctx.is_auto("scheduler.type"):
        return
    if any(str(name).lower() in ("typ", "name", "types", "kind") for name in ctx.scheduler):
        return  # a misspelt `type` is told with the keys
    place = "deepspeed.scheduler"
    yield ctx.finding(
        f"{ctx.key(place)} has no `type`, so the learning rate is never changed",
        place,
        of_key=True,
        notes=["DeepSpeed reads a block without `type` as no scheduler"],
        fix=Fix(f"write {ctx.key(place + '.type')}, or remove the block", {place: None}, safe=True),
    )
