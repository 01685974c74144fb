"""Fewer micro-batches than pipeline stages.

## What it checks
`train.gradient_accumulation_steps` is at least `parallel.pipeline_parallel_size`.

## Why it fails
The micro-batches of a step go through the stages one behind the other. With S stages and M micro-batches every stage
stands still for (S - 1) / (M + S - 1) of the step; below one micro-batch a stage that is about half of it or more.
Four micro-batches a stage bring it under a fifth.

## Example
```yaml
train:
  gradient_accumulation_steps: 1
zero:
  stage: 1
parallel:
  pipeline_parallel_size: 4
```

## Use instead
```yaml
train:
  gradient_accumulation_steps: 16
zero:
  stage: 1
parallel:
  pipeline_parallel_size: 4
```
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.findings import Finding, Fix
from harness.gates.registry import Cite, Context, gate


@gate(
    "PP014",
    "fewer-micro-batches-than-stages",
    upstream="silent",
    cites=(Cite("runtime/pipe/schedule.py", "class TrainSchedule(PipeSchedule):"),),
    when=lambda ctx: ctx.pipeline_parallel_size > 1,
)
def check(ctx: Context) -> Iterator[Finding]:
    """The bubble: (S - 1) / (M + S - 1)."""
    stages, steps = ctx.pipeline_parallel_size, ctx.run.batch.accumulation
    if ctx.run.kind == "deepspeed-json" and steps is None and not ctx.is_auto("gradient_accumulation_steps"):
        steps = 1
    if steps is None or steps >= stages or (ctx.data_parallel_size is None and ctx.run.spec.train.global_batch_size):
        return
    key, better = "train.gradient_accumulation_steps", 4 * stages
    idle, then = (stages - 1) / (steps + stages - 1), (stages - 1) / (better + stages - 1)
    yield ctx.finding(
        f"{steps} micro-{'batch' if steps == 1 else 'batches'} over {stages} pipeline stages: every stage stands still"
        f" {idle:.0%} of the step",
        key,
        related=[("parallel.pipeline_parallel_size", "the stages")],
        notes=[f"with {better} micro-batches it is {then:.0%}; smaller micro-batches keep the global batch"],
        fix=Fix(f"set {ctx.key(key)} to {better}", {key: better}, effect=f"{better} micro-batches a step"),
        severity="warning",
    )
