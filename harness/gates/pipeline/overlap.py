"""Overlapped communication in a pipeline.

## What it checks
`zero.overlap_comm: true` with pipeline stages at ZeRO stage 1.

## Why it fails
The pipeline engine reduces gradients after all micro-batches. DeepSpeed warns and switches the overlap off (run on
0.19.8).

## Example
```yaml
train:
  gradient_accumulation_steps: 8
zero:
  stage: 1
  overlap_comm: true
parallel:
  pipeline_parallel_size: 2
```

## Use instead
```yaml
train:
  gradient_accumulation_steps: 8
zero:
  stage: 1
parallel:
  pipeline_parallel_size: 2
```
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.findings import Finding, Fix
from harness.gates.registry import Cite, Context, gate


@gate(
    "PP009",
    "overlapped-communication-in-a-pipeline",
    upstream="silent",
    cites=(Cite("runtime/engine.py", "Pipeline parallelism does not support overlapped communication"),),
    when=lambda ctx: ctx.pipeline_parallel_size > 1 and ctx.stage == 1,
)
def check(ctx: Context) -> Iterator[Finding]:
    """Switched off with a warning."""
    if ctx.ds("zero_optimization.overlap_comm") is not True:
        return
    key = "zero.overlap_comm"
    yield ctx.finding(
        f"{ctx.key(key)} has no effect in a pipeline",
        key,
        label="switched off",
        related=[("parallel.pipeline_parallel_size", "the pipeline is asked for here")],
        fix=Fix(f"remove {ctx.key(key)}", {key: None}, safe=True, effect="the same"),
        severity="warning",
    )
