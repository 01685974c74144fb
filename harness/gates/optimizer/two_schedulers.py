"""Two schedulers, one of them unused.

## What it checks
The run spec's own `scheduler` section beside `deepspeed.scheduler`.

## Why it fails
There is one scheduler. The harness leaves it to DeepSpeed as soon as `deepspeed.scheduler` is there, and the other
section is not read.

## Example
```yaml
zero:
  stage: 1
scheduler:
  type: cosine
  warmup_steps: 2
deepspeed:
  scheduler:
    type: WarmupLR
    params:
      warmup_min_lr: 1.0e-6
      warmup_num_steps: 10
```

## Use instead
```yaml
zero:
  stage: 1
scheduler:
  type: cosine
  warmup_steps: 2
```
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.findings import Finding, Fix
from harness.gates.registry import Cite, Context, gate


@gate(
    "OP037",
    "two-schedulers",
    upstream="silent",
    cites=(Cite("runtime/engine.py", "load lr scheduler from json configuration if lr scheduler is not defined"),),
    needs=("a run spec",),
    when=lambda ctx: bool(ctx.scheduler) and ctx.source.has_key("scheduler.type"),
)
def check(ctx: Context) -> Iterator[Finding]:
    """One of the two."""
    if ctx.run.kind != "spec":
        return
    yield ctx.finding(
        f"{ctx.key('scheduler')} is not used: {ctx.key('deepspeed.scheduler')} counts",
        "scheduler.type",
        label="not used",
        related=[("deepspeed.scheduler.type", "this one counts")],
        fix=Fix(
            f"remove {ctx.key('deepspeed.scheduler')}",
            {"deepspeed.scheduler": None},
            effect="the rate follows the spec's own section",
        ),
        severity="warning",
    )
