"""Gradient clipping in an fp32 pipeline without ZeRO.

## What it checks
Two or more pipeline stages at ZeRO stage 0, in fp32 or with `torch_autocast`, while gradients are clipped.

## Why it fails
Without ZeRO and without `bf16` or `fp16` the engine clips by the norm of the parameters that it has itself: each
pipeline stage cuts its own layers by its own norm, so that the update is not the one that was asked for and the
stages disagree. Nothing is told. Run on 0.19.8 with SGD and a norm of 0.1: losses of 6.1645 and 6.1916 on two stages,
6.1803 and 6.2178 on one; at ZeRO stage 1, or in bf16, they are equal.

## Example
```yaml
train:
  gradient_accumulation_steps: 8
  max_grad_norm: 1.0
parallel:
  pipeline_parallel_size: 2
```

## Use instead
```yaml
train:
  gradient_accumulation_steps: 8
  max_grad_norm: 1.0
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
    "PP002",
    "each-pipeline-stage-clips-by-itself",
    upstream="silent",
    cites=(Cite("runtime/engine.py", "def clip_fp32_gradients(self):"),),
    when=lambda ctx: ctx.pipeline_parallel_size > 1 and ctx.stage == 0,
)
def check(ctx: Context) -> Iterator[Finding]:
    """The norm of a pipeline is that of all stages."""
    if ctx.gradient_clipping <= 0 or ctx.is_enabled("bf16") or ctx.is_enabled("bfloat16") or ctx.is_enabled("fp16"):
        return
    norm, unwritten = "train.max_grad_norm", not ctx.source.has_key("train.max_grad_norm")
    yield ctx.finding(
        f"each of {ctx.pipeline_parallel_size} pipeline stages clips at {ctx.gradient_clipping:g} "
        f"by the norm of its own layers alone",
        "zero.stage",
        label="at stage 0",
        related=[("parallel.pipeline_parallel_size", "the pipeline is asked for here"), (norm, "clipped at this norm")],
        notes=["clipping is on because nothing switches it off"] if unwritten else (),
        fix=Fix(
            f"set {ctx.key('zero.stage')} to 1",
            {"zero.stage": 1},
            effect="clips by the norm of the whole model, and shards optimizer states",
        ),
    )
