"""Autocast and bf16 weights at once.

## What it checks
`torch_autocast.enabled` together with `bf16.enabled`.

## Why it fails
With bf16 weights there is nothing left to cast: autocast to bf16 changes no loss, and the fp32 parameters that it
promises to keep are gone (run on 0.19.8). With autocast to fp16 a gradient scaler comes on top and multiplies the
gradients by 65536, which clipping then sees.

## Example
```yaml
precision:
  bf16: true
zero:
  stage: 2
deepspeed:
  torch_autocast:
    enabled: true
    dtype: bfloat16
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
from harness.gates.dtypes import dtype_of
from harness.gates.registry import Cite, Context, gate


@gate(
    "PR011",
    "autocast-with-bf16",
    upstream="silent",
    since="0.17.2",
    cites=(Cite("runtime/torch_autocast.py", "the engine will follow the settings in bf16/fp16 section"),),
    when=lambda ctx: ctx.is_enabled("torch_autocast") and ctx.is_enabled("bf16") and not ctx.is_enabled("fp16"),
)
def check(ctx: Context) -> Iterator[Finding]:
    """One of the two."""
    scaled = dtype_of(ctx.ds("torch_autocast.dtype")) == "fp16"
    yield ctx.finding(
        f"{ctx.key('deepspeed.torch_autocast.enabled')} beside {ctx.key('precision.bf16')}: "
        + ("bf16 gradients are scaled as if they were fp16" if scaled else "the weights are bf16 already"),
        "deepspeed.torch_autocast.enabled",
        label="wrong" if scaled else "has no effect",
        related=[("precision.bf16", "the weights are bf16")],
        fix=Fix(
            f"remove {ctx.key('deepspeed.torch_autocast')}",
            {"deepspeed.torch_autocast": None},
            effect=f"trains in bf16 without {'a gradient scaler' if scaled else 'autocast'}",
        ),
        severity="error" if scaled else "warning",
    )
