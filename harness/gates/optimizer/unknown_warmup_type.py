"""A kind of warm-up that there is not.

## What it checks
`warmup_type` of DeepSpeed's schedulers: `log` or `linear`.

## Why it fails
Anything else is taken for `log`, with a line in the log that nobody reads (run on 0.19.8).

## Example
```yaml
zero:
  stage: 1
deepspeed:
  scheduler:
    type: WarmupLR
    params:
      warmup_min_lr: 1.0e-6
      warmup_num_steps: 10
      warmup_type: cosine
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
      warmup_type: linear
```
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.findings import Finding, Fix
from harness.gates.optimizer.known import schedule
from harness.gates.registry import Cite, Context, gate


@gate(
    "OP032",
    "unknown-warmup-type",
    upstream="silent",
    cites=(Cite("runtime/lr_schedules.py", "Using unknown warmup_type: {warmup_type}."),),
    when=lambda ctx: schedule(ctx).startswith("Warmup"),
)
def check(ctx: Context) -> Iterator[Finding]:
    """Two kinds."""
    kind = ctx.ds("scheduler.params.warmup_type")
    if kind in (None, "log", "linear"):
        return
    place = "deepspeed.scheduler.params.warmup_type"
    better = str(kind).lower() if str(kind).lower() in ("log", "linear") else "linear"
    yield ctx.finding(
        f"{ctx.key(place)} is `{str(kind)[:30]}`, and DeepSpeed takes it for `log`",
        place,
        label="`log` or `linear`",
        fix=Fix(f"set {ctx.key(place)} to `{better}`", {place: better}, effect=f"the rate rises as {better}"),
        severity="warning",
    )
