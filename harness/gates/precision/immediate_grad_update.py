"""A switch of an optimizer that is not used.

## What it checks
`bf16.immediate_grad_update` where DeepSpeed does not take its BF16_Optimizer: that is everywhere but at ZeRO stage 1
with fp32 accumulation and no offload, and in pipelines at stage 0.

## Why it fails
BF16_Optimizer alone reads the key. Elsewhere it is accepted and has no effect (run on 0.19.8 at stage 1).

## Example
```yaml
precision:
  bf16: true
zero:
  stage: 2
deepspeed:
  bf16:
    immediate_grad_update: true
```

## Use instead
```yaml
precision:
  bf16: true
zero:
  stage: 2
```
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.findings import Finding, Fix
from harness.gates.dtypes import grad_accum_dtype
from harness.gates.registry import Cite, Context, gate


@gate(
    "PR030",
    "immediate-update-not-read",
    upstream="silent",
    since="0.18.5",
    cites=(Cite("runtime/bf16_optimizer.py", "self.immediate_grad_update = bfloat16_config.immediate_grad_update"),),
    when=lambda ctx: ctx.is_enabled("bf16"),
)
def check(ctx: Context) -> Iterator[Finding]:
    """BF16_Optimizer's own."""
    if ctx.ds("bf16.immediate_grad_update") is not True or (ctx.stage == 0 and ctx.pipeline_parallel_size > 1):
        return
    if ctx.stage == 1 and grad_accum_dtype(ctx) == "fp32" and ctx.offload_device("offload_optimizer") != "cpu":
        return
    place = "deepspeed.bf16.immediate_grad_update"
    yield ctx.finding(
        f"{ctx.key(place)} is not read at ZeRO stage {ctx.stage} here",
        place,
        label="has no effect",
        related=[("zero.stage", "the stage is set here")],
        notes=["only stage 1 with fp32 accumulation and without offload has the optimizer that reads it"],
        fix=Fix(f"remove {ctx.key(place)}", {place: None}, safe=True),
        severity="warning",
    )
