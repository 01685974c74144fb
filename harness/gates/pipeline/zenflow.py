"""ZenFlow in a pipeline.

## What it checks
A `zenflow` block in `zero_optimization` with pipeline stages.

## Why it fails
ZenFlow counts micro-batches itself and asserts so; a PipelineModule ends in a bare AssertionError at initialisation
(run on 0.19.8). From 0.19.7 on ZenFlow is refused at these ZeRO stages anyway: see `zenflow-scrambles-weights`.

## Example
```yaml
train:
  gradient_accumulation_steps: 8
zero:
  stage: 1
  offload_optimizer:
    device: cpu
parallel:
  pipeline_parallel_size: 2
deepspeed:
  zero_optimization:
    zenflow:
      select_strategy: step
      select_interval: 8
      update_interval: 8
```

## Use instead
```yaml
train:
  gradient_accumulation_steps: 8
zero:
  stage: 1
  offload_optimizer:
    device: cpu
parallel:
  pipeline_parallel_size: 2
```
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.findings import Finding, Fix
from harness.gates.registry import Context, gate


@gate(
    "PP012",
    "zenflow-in-a-pipeline",
    upstream="asserts",
    since="0.17.5",
    until="0.19.6",
    unseen="needs an older DeepSpeed",
    when=lambda ctx: (
        ctx.pipeline_parallel_size > 1 and ctx.stage > 0 and ctx.ds("zero_optimization.zenflow") is not None
    ),
)
def check(ctx: Context) -> Iterator[Finding]:
    """One loop or the other."""
    key = "deepspeed.zero_optimization.zenflow"
    yield ctx.finding(
        f"{ctx.key(key)} does not run in a pipeline of {ctx.pipeline_parallel_size} stages",
        key,
        related=[("parallel.pipeline_parallel_size", "the pipeline is asked for here")],
        notes=["DeepSpeed ends in a bare AssertionError at initialisation"],
        fix=Fix(f"remove {ctx.key(key)}", {key: None}, effect="the optimizer runs at every step, without overlap"),
    )
