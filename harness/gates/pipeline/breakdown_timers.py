"""Timers that a pipeline starts twice.

## What it checks
`wall_clock_breakdown: true` or an enabled `flops_profiler` (which switches it on) with pipeline stages.

## Why it fails
The pipeline engine and the engine below it start the same timer: "bwd_microstep timer has already been started", an
assertion in the first step (run on 0.18.3, 0.19.3 and 0.19.8). From 0.15.2 to 0.18.2 it fails as well, with a
TypeError, unless `steps_per_print` is a number.

## Example
```yaml
train:
  gradient_accumulation_steps: 8
zero:
  stage: 1
parallel:
  pipeline_parallel_size: 2
deepspeed:
  wall_clock_breakdown: true
```

## Use instead
```yaml
train:
  gradient_accumulation_steps: 8
zero:
  stage: 1
parallel:
  pipeline_parallel_size: 2
deepspeed:
  wall_clock_breakdown: false
```
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.findings import Finding, Fix
from harness.gates.registry import Cite, Context, gate


@gate(
    "PP005",
    "pipeline-with-wall-clock-breakdown",
    upstream="asserts",
    cites=(Cite("utils/timer.py", "timer has already been started"),),
    since="0.15.2",
    when=lambda ctx: ctx.pipeline_parallel_size > 1,
)
def check(ctx: Context) -> Iterator[Finding]:
    """Either switch starts the timers."""
    breakdown, profiler = ctx.ds("wall_clock_breakdown") is True, ctx.is_enabled("flops_profiler")
    if not breakdown and not profiler:
        return
    if (0, 15, 2) <= ctx.target.version < (0, 18, 3) and ctx.ds("steps_per_print"):
        return
    keys = ["deepspeed.wall_clock_breakdown"] * breakdown + ["deepspeed.flops_profiler.enabled"] * profiler
    yield ctx.finding(
        f"a pipeline fails in its first step with {ctx.key(keys[0])}",
        keys[0],
        label="starts a timer twice",
        related=[("parallel.pipeline_parallel_size", "the pipeline"), *[(key, "so does this") for key in keys[1:]]],
        notes=["DeepSpeed asserts `bwd_microstep timer has already been started`"],
        fix=Fix(f"set {ctx.key(keys[0])} to false", dict.fromkeys(keys, False), safe=True, effect="no timers"),
    )
