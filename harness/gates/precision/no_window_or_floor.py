"""Dynamic loss scaling with a window or a floor of 0.

## What it checks
`precision.loss_scale_window: 0` or `precision.min_loss_scale: 0` with fp16 and a dynamic loss scale.

## Why it fails
The window is divided by, and a scale that may fall to 0 turns every gradient into 0 or nan. DeepSpeed refuses both
while it reads the configuration (run on 0.19.8); older releases divide by zero in the middle of training (read). With
a fixed `loss_scale`, or without fp16, nothing reads them.

## Example
```yaml
precision:
  fp16: true
  min_loss_scale: 0
zero:
  stage: 2
```

## Use instead
```yaml
precision:
  fp16: true
  min_loss_scale: 1
zero:
  stage: 2
```
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.findings import Finding, Fix
from harness.gates.registry import Cite, Context, gate

_DEFAULTS = {"loss_scale_window": 1000, "min_loss_scale": 1}


@gate(
    "PR036",
    "dynamic-loss-scale-without-window-or-floor",
    upstream="raises",
    cites=(Cite("runtime/precision_config.py", "validate_dynamic_loss_scale_params"),),
    when=lambda ctx: ctx.run.spec.precision.fp16,
)
def check(ctx: Context) -> Iterator[Finding]:
    """Both must be at least 1 while the scale is dynamic."""
    precision = ctx.run.spec.precision
    if precision.loss_scale > 0:
        return
    for name, default in _DEFAULTS.items():
        if getattr(precision, name) == 0:
            key = f"precision.{name}"
            yield ctx.finding(
                f"{ctx.key(key)} is 0, dynamic loss scaling needs at least 1",
                key,
                label="refused",
                fix=Fix(f"set {ctx.key(key)} to {default}, DeepSpeed's default", {key: default}, safe=True),
            )
