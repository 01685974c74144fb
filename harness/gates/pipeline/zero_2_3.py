"""ZeRO stage 2 or 3 under a PipelineModule.

## What it checks
`zero.stage` 2 or 3 together with `parallel.pipeline_parallel_size` above 1.

## Why it fails
A pipeline runs the backward passes of several micro-batches before one optimizer step, and adds their gradients up in
place. ZeRO-2 shards gradients as they appear and ZeRO-3 the parameters too, so there is no whole gradient to add to.
DeepSpeed asserts this when the pipeline engine is built, after every rank has built its weights; under `python -O`
the assertion is gone and stage 2 fails in the first step while stage 3 hangs (both seen on 0.19.8).

## Example
```yaml
train:
  gradient_accumulation_steps: 8
zero:
  stage: 2
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

_SHARDS = {2: "shards gradients", 3: "shards gradients and parameters"}


@gate(
    "PP001",
    "zero-sharded-gradients-in-a-pipeline",
    upstream="asserts",
    cites=(Cite("runtime/pipe/engine.py", "ZeRO-2 and ZeRO-3 are incompatible with pipeline parallelism"),),
    when=lambda ctx: ctx.pipeline_parallel_size > 1 and ctx.stage > 1,
)
def check(ctx: Context) -> Iterator[Finding]:
    """Pipelines take stages 0 and 1."""
    yield ctx.finding(
        f"ZeRO stage {ctx.stage} cannot run under a PipelineModule of {ctx.pipeline_parallel_size} stages",
        "zero.stage",
        label=_SHARDS[ctx.stage],
        related=[("parallel.pipeline_parallel_size", "the pipeline is asked for here")],
        notes=["DeepSpeed asserts this only when the engine is built, after every rank has its weights"],
        fix=Fix(
            f"set {ctx.key('zero.stage')} to 1", {"zero.stage": 1}, safe=True, effect="the same steps with more memory"
        ),
    )
