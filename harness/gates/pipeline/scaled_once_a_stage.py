"""Gradients that a pipeline scales once a stage.

## What it checks
Pipeline stages with more than one accumulation step on DeepSpeed 0.18.5 to 0.19.2.

## Why it fails
The last stage divides the gradients by the accumulation steps and sends them on, and each stage before it divides
again: with 4 stages and 8 steps the first layers train with a 512th of their gradient. Adam hides much of it,
clipping and SGD do not. Repaired in 0.19.3 (DeepSpeed's issue 8152); not run here.

## Example
```yaml
train:
  gradient_accumulation_steps: 8
zero:
  stage: 1
parallel:
  pipeline_parallel_size: 2
```

## Use instead
```yaml
zero:
  stage: 1
```
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.findings import Finding, Fix
from harness.gates.registry import Context, gate


@gate(
    "PP008",
    "gradients-scaled-once-a-stage",
    upstream="wrong",
    since="0.18.5",
    until="0.19.2",
    when=lambda ctx: ctx.pipeline_parallel_size > 1,
    unseen="needs an older DeepSpeed",
)
def check(ctx: Context) -> Iterator[Finding]:
    """Divided again on every stage."""
    steps = ctx.run.batch.accumulation or 1
    if steps == 1:
        return
    stages = "parallel.pipeline_parallel_size"
    yield ctx.finding(
        f"DeepSpeed {ctx.target.text} divides the first stage's gradients by {steps} once on each of the"
        f" {ctx.pipeline_parallel_size} stages, instead of once",
        stages,
        related=[("train.gradient_accumulation_steps", "the accumulation steps")],
        notes=["every stage divides what the next one has already divided; 0.19.3 repaired it"],
        fix=Fix(f"use DeepSpeed 0.19.3 or newer, or set {ctx.key(stages)} to 1", {stages: 1}, effect="no pipeline"),
    )
