"""fp16 without ZeRO.

## What it checks
`precision.fp16` with `zero.stage: 0`, unless the loss scale is fixed at 1.

## Why it fails
From 0.18.3 on `engine.backward` multiplies the loss by the loss scale for ZeRO optimizers only, while the fp16
optimizers of stage 0 still divide the gradients by it: SGD trains nothing, Adam is throttled by its epsilon, clipping
never clips. No error, no warning, exit code 0. Up to 0.18.2 it was right. Pipelines scale by themselves and are not
concerned.

## Example
```yaml
precision:
  fp16: true
zero:
  stage: 0
```

## Use instead
```yaml
precision:
  fp16: true
zero:
  stage: 1
```
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.findings import Finding, Fix
from harness.gates.registry import Cite, Context, gate


@gate(
    "PR002",
    "unscaled-fp16-without-zero",
    upstream="silent",
    since="0.18.3",
    cites=(Cite("runtime/engine.py", "loss = self.optimizer.scale_if_loss(loss)"),),
)
def check(ctx: Context) -> Iterator[Finding]:
    """fp16 needs a ZeRO optimizer to be scaled rightly."""
    spec = ctx.run.spec
    one = spec.precision.loss_scale == 1 or (spec.precision.loss_scale == 0 and spec.precision.initial_scale_power == 0)
    if (
        not spec.precision.fp16
        or spec.precision.bf16
        or spec.zero.stage != 0
        or one
        or spec.parallel.pipeline_parallel_size > 1
    ):
        return
    yield ctx.finding(
        "fp16 trains next to nothing at ZeRO stage 0",
        "precision.fp16",
        related=[("zero.stage", "the stage is set here")],
        notes=[
            f"DeepSpeed {ctx.target.text} divides the gradients by a loss scale that it never multiplied the loss with",
            *(["a PipelineModule scales by itself"] if _may_be_a_pipeline(ctx) else []),
        ],
        fix=Fix(f"set {ctx.key('zero.stage')} to 1", {"zero.stage": 1}, effect="gradients are scaled rightly"),
        severity="warning" if _may_be_a_pipeline(ctx) else "error",
    )


def _may_be_a_pipeline(ctx: Context) -> bool:
    """A JSON does not say whether its script builds a PipelineModule, which is not affected."""
    return ctx.consumer == "deepspeed" and not ctx.source.has_key("parallel.pipeline_parallel_size")
