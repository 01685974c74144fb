"""fp16 autocast under ZeRO never recovers from an overflow.

## What it checks
`torch_autocast` with an fp16 `dtype` at ZeRO stages 1 to 3 without clipping. (With clipping see
`fp16-autocast-clips-scaled-gradients`.)

## Why it fails
ZeRO notices the overflow and skips the step, but does not tell the gradient scaler. The scale stays at 65536, the next
step overflows as well, and every later step is skipped (8 of 8 in a run on 0.19.8; at stage 0 the scale came down).

## Example
```yaml
train:
  max_grad_norm: 0.0
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
  max_grad_norm: 0.0
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
    "PR013",
    "fp16-autocast-stuck-after-overflow",
    upstream="silent",
    since="0.19.8",
    cites=(Cite("runtime/zero/stage_1_and_2.py", "self.torch_autocast_gradscaler.update()"),),
    when=lambda ctx: ctx.is_enabled("torch_autocast") and ctx.stage > 0,
)
def check(ctx: Context) -> Iterator[Finding]:
    """The scaler is not told of skipped steps."""
    if (
        dtype_of(ctx.ds("torch_autocast.dtype")) != "fp16"
        or ctx.is_enabled("fp16")
        or ctx.is_enabled("bf16")
        or ctx.gradient_clipping > 0
    ):
        return
    place = "deepspeed.torch_autocast.dtype"
    yield ctx.finding(
        f"after one overflow, fp16 autocast at ZeRO stage {ctx.stage} skips every step",
        place,
        related=[("zero.stage", "the stage is set here")],
        notes=["DeepSpeed skips the step without telling the gradient scaler, whose scale stays at 65536"],
        fix=Fix(f"set {ctx.key(place)} to `bfloat16`", {place: "bfloat16"}, effect="computes in bf16, without scaling"),
        severity="warning",
    )
