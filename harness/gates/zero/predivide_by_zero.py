"""Gradients divided by zero.

## What it checks
`gradient_predivide_factor: 0` at stage 0, or at stages 1 to 3 with `zero.reduce_scatter: false`. With
`prescale_gradients` the factor is not read, nor at stage 1 with reduce-scatter.

## Why it fails
Every reduction divides by the factor first: ZeroDivisionError in the first step at stages 0, 1 and 2. At stage 3 the
gradients become inf, every step is skipped and nothing is trained, without an error (run on 0.19.8). Stages 2 and 3
with reduce-scatter refuse every factor but 1, which is gate ZR005.

## Example
```yaml
zero:
  stage: 0
deepspeed:
  gradient_predivide_factor: 0
```

## Use instead
```yaml
zero:
  stage: 0
deepspeed:
  gradient_predivide_factor: 1.0
```
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.findings import Finding, Fix
from harness.gates.registry import Cite, Context, gate


@gate(
    "ZR006",
    "gradients-divided-by-zero",
    upstream="crashes",
    cites=(Cite("runtime/engine.py", "tensor_to_allreduce.mul_(1.0 / self.gradient_predivide_factor())"),),
    when=lambda ctx: ctx.ds("gradient_predivide_factor", 1.0) == 0,
)
def check(ctx: Context) -> Iterator[Finding]:
    """The factor divides."""
    key = ctx.spec_key("gradient_predivide_factor")
    if ctx.ds("prescale_gradients", False) or str(ctx.ds("gradient_allreduce_op", "mean")).lower() == "sum":
        return
    if ctx.stage > 0 and ctx.ds("zero_optimization.reduce_scatter", True) is not False:
        return
    yield ctx.finding(
        f"{ctx.key(key)} is 0, and every gradient is divided by it",
        key,
        label="every step is skipped" if ctx.stage == 3 else "division by zero in the first step",
        fix=Fix(f"set {ctx.key(key)} to 1.0", {key: 1.0}, safe=True),
    )
