"""fp16 autocast with clipping under ZeRO.

## What it checks
`torch_autocast` with an fp16 `dtype` at ZeRO stages 1 to 3 while gradients are clipped.

## Why it fails
The gradient scaler multiplies the loss by 65536. ZeRO computes the norm and clips before the scaler divides again, so
that the gradients are cut to the norm and then divided by 65536: SGD trains nothing, Adam is throttled by its epsilon,
the reported norm is thousands of times too large. No error (run on 0.19.8 at stages 1, 2 and 3; stage 0 is right).

## Example
```yaml
train:
  max_grad_norm: 1.0
zero:
  stage: 2
deepspeed:
  torch_autocast:
    enabled: true
    dtype: float16
```

## Use instead
```yaml
train:
  max_grad_norm: 1.0
zero:
  stage: 2
deepspeed:
  torch_autocast:
    enabled: true
    dtype: bfloat16
```
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.findings import Finding, Fix
from harness.gates.dtypes import dtype_of
from harness.gates.registry import Cite, Context, gate


@gate(
    "PR012",
    "fp16-autocast-clips-scaled-gradients",
    upstream="silent",
    since="0.17.2",
    cites=(Cite("runtime/zero/stage_1_and_2.py", "self.torch_autocast_gradscaler.step(self.optimizer)"),),
    when=lambda ctx: ctx.is_enabled("torch_autocast") and ctx.stage > 0,
)
def check(ctx: Context) -> Iterator[Finding]:
    """ZeRO clips what the scaler has not divided yet."""
    if (
        dtype_of(ctx.ds("torch_autocast.dtype")) != "fp16"
        or ctx.is_enabled("fp16")
        or ctx.is_enabled("bf16")
        or ctx.gradient_clipping <= 0
    ):
        return
    place = "deepspeed.torch_autocast.dtype"
    yield ctx.finding(
        f"fp16 autocast at ZeRO stage {ctx.stage} clips gradients that are still scaled by 65536",
        place,
        label="trains next to nothing",
        related=[("train.max_grad_norm", "the norm they are clipped at"), ("zero.stage", "the stage is set here")],
        notes=["ZeRO clips first and the gradient scaler divides afterwards"],
        fix=Fix(f"set {ctx.key(place)} to `bfloat16`", {place: "bfloat16"}, effect="computes in bf16, without scaling"),
    )
