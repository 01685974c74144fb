"""SuperOffload below stage 3.

## What it checks
`super_offload: true` in `offload_optimizer` at stage 0, 1 or 2.

## Why it fails
Only stage 3 asks for it. Below, the flag is accepted and the optimizer is offloaded in the ordinary way (run on 0.19.8
at stages 0 and 2).

## Example
```yaml
zero:
  stage: 2
  offload_optimizer:
    device: cpu
deepspeed:
  zero_optimization:
    offload_optimizer:
      super_offload: true
```

## Use instead
```yaml
zero:
  stage: 3
  offload_optimizer:
    device: cpu
deepspeed:
  zero_optimization:
    offload_optimizer:
      super_offload: true
```
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.findings import Finding, Fix
from harness.gates.registry import Cite, Context, gate


@gate(
    "OF015",
    "super-offload-below-stage-3",
    upstream="silent",
    cites=(
        Cite("runtime/engine.py", "Stage3ZeroOptimizer = DeepSpeedZeroOptimizer_Stage3 if not self.super_offload("),
    ),
    since="0.18.0",
    when=lambda ctx: 0 < ctx.stage < 3,
)
def check(ctx: Context) -> Iterator[Finding]:
    """SuperOffload is a class of stage 3."""
    key = ctx.spec_key("zero_optimization.offload_optimizer.super_offload")
    if ctx.ds("zero_optimization.offload_optimizer.super_offload") is not True:
        return
    yield ctx.finding(
        f"{ctx.key(key)} is not read at ZeRO stage {ctx.stage}, only at stage 3",
        key,
        label="has no effect",
        related=[("zero.stage", "the stage is set here")],
        fix=Fix(f"remove it, or set {ctx.key('zero.stage')} to 3", {key: None}, safe=True),
        severity="warning",
    )
