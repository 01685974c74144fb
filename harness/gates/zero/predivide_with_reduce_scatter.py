"""Pre-scaled gradients with reduce-scatter.

## What it checks
`gradient_predivide_factor` other than 1.0, or `prescale_gradients: true`, at stage 2 or 3 while `zero.reduce_scatter`
is on, which it is unless written otherwise.

## Why it fails
Both optimizers assert against it when they are built (run on 0.19.8). With `reduce_scatter: false` it runs and the
average comes out the same.

## Example
```yaml
zero:
  stage: 2
deepspeed:
  prescale_gradients: true
```

## Use instead
```yaml
zero:
  stage: 2
  reduce_scatter: false
deepspeed:
  prescale_gradients: true
```
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.findings import Finding, Fix
from harness.gates.registry import Cite, Context, gate

_KEYS = {"prescale_gradients": False, "gradient_predivide_factor": 1.0}
"""Each with the value that asks for nothing."""


@gate(
    "ZR005",
    "predivide-with-reduce-scatter",
    upstream="asserts",
    cites=(
        Cite("runtime/zero/stage_1_and_2.py", "gradient_predivide_factor != 1.0 is not yet supported with"),
        Cite("runtime/zero/stage3.py", "pre-scale gradients is not yet supported with ZeRO-3"),
    ),
    when=lambda ctx: ctx.stage in (2, 3),
)
def check(ctx: Context) -> Iterator[Finding]:
    """Reduce-scatter divides by itself."""
    if ctx.ds("zero_optimization.reduce_scatter", True) is not True:
        return
    if ctx.stage == 2 and str(ctx.ds("gradient_allreduce_op", "mean")).lower() == "sum":
        return  # stage 2 checks only when it averages
    wrong = [name for name, idle in _KEYS.items() if ctx.ds(name, idle) != idle]
    if not wrong:
        return
    key = ctx.spec_key(wrong[0])
    yield ctx.finding(
        f"{ctx.key(key)} does not go with reduce-scatter at ZeRO stage {ctx.stage}",
        key,
        label="the average is taken by reduce-scatter",
        related=[("zero.stage", "the stage is set here")],
        notes=["DeepSpeed asserts this only when the engine is built, after every rank has its weights"],
        fix=Fix(
            f"remove {'it' if len(wrong) == 1 else 'both'}: the average of the gradients is the same",
            {ctx.spec_key(name): None for name in wrong},
            safe=True,
        ),
    )
