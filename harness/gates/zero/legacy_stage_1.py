"""The old implementation of stage 1.

## What it checks
`legacy_stage1: true` in `zero_optimization`, at any stage but 0.

## Why it fails
The key is still accepted, the implementation was removed in DeepSpeed 0.5.9: an exception when the optimizer is built
(run on 0.19.8).

## Example
```yaml
zero:
  stage: 1
deepspeed:
  zero_optimization:
    legacy_stage1: true
```

## Use instead
```yaml
zero:
  stage: 1
```
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.findings import Finding, Fix
from harness.gates.registry import Cite, Context, gate


@gate(
    "ZR010",
    "legacy-zero-stage-1",
    upstream="raises",
    cites=(Cite("runtime/engine.py", "The deprecated version of ZeRO Stage 1 is not supported in deepspeed >= 0.5.9"),),
    when=lambda ctx: ctx.stage > 0,
)
def check(ctx: Context) -> Iterator[Finding]:
    """It is gone for good."""
    key = ctx.spec_key("zero_optimization.legacy_stage1")
    if ctx.ds("zero_optimization.legacy_stage1") is not True:
        return
    yield ctx.finding(
        f"{ctx.key(key)} asks for an implementation that DeepSpeed removed in 0.5.9",
        key,
        notes=["DeepSpeed raises only when the engine is built, after every rank has its weights"],
        fix=Fix("remove it", {key: None}, safe=True),
    )
