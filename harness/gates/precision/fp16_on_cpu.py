"""fp16 on the CPU accelerator.

## What it checks
`precision.fp16` where the accelerator is the CPU.

## Why it fails
DeepSpeed asks torch whether the processor computes in fp16, which takes AVX512-FP16. Elsewhere every rank fails at
once: `ValueError: Type fp16 is not supported on your device` (run on processors of both kinds). Up to 0.15.4 no CPU was
accepted.

## Example
```yaml
precision:
  fp16: true
zero:
  stage: 1
cluster:
  gpu: cpu
```

## Use instead
```yaml
precision:
  bf16: true
zero:
  stage: 1
cluster:
  gpu: cpu
```
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.findings import Finding, Fix
from harness.gates.registry import Cite, Context, gate


@gate(
    "PR017",
    "fp16-on-a-cpu",
    upstream="raises",
    cites=(Cite("runtime/engine.py", "Type fp16 is not supported on your device."),),
    needs=("the accelerator",),
    when=lambda ctx: ctx.is_enabled("fp16") and not ctx.is_enabled("bf16"),
)
def check(ctx: Context) -> Iterator[Finding]:
    """Few processors compute in fp16."""
    if ctx.accelerator != "cpu":
        return
    never = ctx.target.version < (0, 16, 0)
    yield ctx.finding(
        "fp16 does not run on this DeepSpeed's CPU accelerator"
        if never
        else "fp16 on a CPU needs a processor with AVX512-FP16",
        "precision.fp16",
        notes=["bf16 runs on every processor that DeepSpeed runs on"],
        fix=Fix(
            f"set {ctx.key('precision.fp16')} to false and {ctx.key('precision.bf16')} to true",
            {"precision.fp16": False, "precision.bf16": True},
            effect="trains in bf16, without loss scaling",
        ),
        severity="error" if never else "warning",
    )
