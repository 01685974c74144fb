"""A smallest loss scale at or above the first one.

## What it checks
`precision.min_loss_scale` against 2 to the power of `precision.initial_scale_power`, with dynamic scaling.

## Why it fails
After an overflow the scale is halved, but never below the smallest one. Where that is above the first scale, an
overflow raises the scale; where they are equal, the second overflow ends the run: `Current loss scale already at
minimum`. Both are accepted in silence (read in 0.19.8).

## Example
```yaml
precision:
  fp16: true
  initial_scale_power: 4
  min_loss_scale: 256
zero:
  stage: 1
```

## Use instead
```yaml
precision:
  fp16: true
  initial_scale_power: 16
  min_loss_scale: 1
zero:
  stage: 1
```
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.findings import Finding, Fix
from harness.gates.registry import Cite, Context, gate


@gate(
    "PR018",
    "loss-scale-cannot-fall",
    upstream="silent",
    cites=(Cite("runtime/fp16/loss_scaler.py", "max(self.cur_scale / self.scale_factor, self.min_scale)"),),
    when=lambda ctx: ctx.is_enabled("fp16"),
)
def check(ctx: Context) -> Iterator[Finding]:
    """The scale must have room to fall."""
    precision = ctx.run.spec.precision
    power, smallest = precision.initial_scale_power, precision.min_loss_scale
    if precision.loss_scale != 0 or power == 0 or power > 60 or smallest < 2**power:
        return
    first = 2**power
    does = "raises it" if smallest > first else "ends the run"
    yield ctx.finding(
        f"the loss scale starts at {first} and its minimum is {smallest}: an overflow {does}",
        "precision.min_loss_scale",
        related=[("precision.initial_scale_power", f"2 to the power of {power} is {first}")],
        fix=Fix(
            f"set {ctx.key('precision.min_loss_scale')} to 1 and {ctx.key('precision.initial_scale_power')} to 16",
            {"precision.min_loss_scale": 1, "precision.initial_scale_power": 16},
            effect="starts at 65536 and may fall to 1",
        ),
        severity="warning",
    )
