"""fp16 through a pipeline on 0.18.3 and 0.18.4.

## What it checks
`fp16` with pipeline stages on these two releases.

## Why it fails
Backward was rewritten in 0.18.3, and the pipeline engine still called torch's own: "Direct calls to tensor.backward()
are not supported" at stage 0, "Loss scaling is required" at stage 1 (run on 0.18.3). 0.18.5 repaired it.

## Example
```yaml
train:
  gradient_accumulation_steps: 8
precision:
  fp16: true
zero:
  stage: 1
parallel:
  pipeline_parallel_size: 2
```

## Use instead
```yaml
train:
  gradient_accumulation_steps: 8
precision:
  bf16: true
zero:
  stage: 1
parallel:
  pipeline_parallel_size: 2
```
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.findings import Finding, Fix
from harness.gates.registry import Context, gate


@gate(
    "PP007",
    "fp16-pipeline-before-0-18-5",
    upstream="raises",
    since="0.18.3",
    until="0.18.4",
    when=lambda ctx: ctx.pipeline_parallel_size > 1 and ctx.is_enabled("fp16"),
    unseen="needs an older DeepSpeed",
)
def check(ctx: Context) -> Iterator[Finding]:
    """Two releases that cannot."""
    yield ctx.finding(
        f"DeepSpeed {ctx.target.text} cannot run an fp16 backward pass through a pipeline",
        "precision.fp16",
        related=[("parallel.pipeline_parallel_size", "the pipeline is asked for here")],
        notes=["it fails in the first step; 0.18.5 repaired it"],
        fix=Fix(
            f"use {ctx.key('precision.bf16')}, or another DeepSpeed",
            {"precision.fp16": None, "precision.bf16": True},
            effect="trains in bf16",
        ),
    )
