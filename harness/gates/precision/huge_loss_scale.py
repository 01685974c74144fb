"""A loss scale far beyond fp16.

## What it checks
`precision.initial_scale_power` above 24, or a fixed `precision.loss_scale` above 2 to the 24.

## Why it fails
The largest fp16 number is 65504. A dynamic scale of 2 to the 32 overflows in every step until it has been halved often
enough: those steps are skipped, learning-rate schedule and data go on or stand still without any training (run on
0.19.8: 6 of 6 steps skipped from 2 to the 40). A fixed scale never falls, so that every step may be skipped.

## Example
```yaml
precision:
  fp16: true
  initial_scale_power: 40
zero:
  stage: 2
```

## Use instead
```yaml
precision:
  fp16: true
  initial_scale_power: 16
zero:
  stage: 2
```
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.findings import Finding, Fix
from harness.gates.registry import Cite, Context, gate


@gate(
    "PR019",
    "huge-loss-scale",
    upstream="silent",
    cites=(Cite("runtime/precision_config.py", "return 2**self.initial_scale_power"),),
    when=lambda ctx: ctx.is_enabled("fp16"),
)
def check(ctx: Context) -> Iterator[Finding]:
    """A scale that gradients in fp16 survive."""
    precision = ctx.run.spec.precision
    if precision.loss_scale > 2**24:
        yield ctx.finding(
            f"a fixed loss scale of {precision.loss_scale:g} overflows fp16, and every such step is skipped",
            "precision.loss_scale",
            fix=Fix(
                f"set {ctx.key('precision.loss_scale')} to 0",
                {"precision.loss_scale": 0},
                effect="scales dynamically",
            ),
            severity="warning",
        )
    elif precision.loss_scale == 0 and precision.initial_scale_power > 24:
        power = precision.initial_scale_power
        yield ctx.finding(
            f"the loss scale starts at 2 to the {power}: about {power - 16} steps are skipped before one trains",
            "precision.initial_scale_power",
            notes=["an overflow halves the scale and skips the step"],
            fix=Fix(
                f"set {ctx.key('precision.initial_scale_power')} to 16",
                {"precision.initial_scale_power": 16},
                effect="the first steps train",
            ),
            severity="info" if power <= 32 else "warning",
        )
