"""Layers that do not divide over the pipeline stages.

## What it checks
The number of layers is a multiple of `parallel.pipeline_parallel_size`.

## Why it fails
Nothing fails. Every micro-batch passes every stage, so the stage with most layers sets the pace and the others wait
for it. With few layers a stage one layer makes much of a difference.

## Example
```yaml
model:
  name_or_path: Qwen/Qwen2.5-1.5B
train:
  gradient_accumulation_steps: 32
zero:
  stage: 1
parallel:
  pipeline_parallel_size: 8
```

## Use instead
```yaml
model:
  name_or_path: Qwen/Qwen2.5-1.5B
train:
  gradient_accumulation_steps: 32
zero:
  stage: 1
parallel:
  pipeline_parallel_size: 7
```
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.findings import Finding, Fix
from harness.gates.registry import Context, gate


@gate(
    "PP004",
    "uneven-pipeline-stages",
    upstream="silent",
    needs=("model facts",),
    when=lambda ctx: ctx.pipeline_parallel_size > 1,
    unseen="a matter of speed alone",
)
def check(ctx: Context) -> Iterator[Finding]:
    """The fullest stage sets the pace."""
    layers, stages = (ctx.model.num_layers if ctx.model else 0), ctx.pipeline_parallel_size
    if layers % stages == 0 or stages > layers + 2:
        return
    key, most = "parallel.pipeline_parallel_size", -(-layers // stages)
    better = next(d for d in range(min(stages, layers), 0, -1) if layers % d == 0)
    yield ctx.finding(
        f"{layers} layers do not divide over {stages} pipeline stages: the fullest has {most}, the mean is"
        f" {layers / stages:.1f}",
        key,
        related=[("model.name_or_path", "the model")],
        notes=[f"the other stages wait {1 - layers / stages / most:.0%} of the time for the fullest"],
        fix=Fix(f"set {ctx.key(key)} to {better}", {key: better}, effect="other memory and speed"),
        severity="info",
    )
