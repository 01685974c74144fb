"""Loss scaling where nothing is scaled.

## What it checks
`precision.loss_scale`, `initial_scale_power`, `loss_scale_window`, `hysteresis` and `min_loss_scale` without
`precision.fp16: true`.

## Why it fails
Only fp16 needs its loss scaled; bf16 and fp32 have the range. The values are not rendered.

## Example
```yaml
precision:
  bf16: true
  initial_scale_power: 12
zero:
  stage: 1
```

## Use instead
```yaml
precision:
  bf16: true
zero:
  stage: 1
```
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.findings import Finding, Fix
from harness.gates.registry import Context, gate


@gate("MD010", "loss-scale-without-fp16", upstream="silent", needs=("a run spec",))
def check(ctx: Context) -> Iterator[Finding]:
    """Nothing to scale."""
    if ctx.run.spec.precision.fp16:
        return
    for name in ("loss_scale", "initial_scale_power", "loss_scale_window", "hysteresis", "min_loss_scale"):
        key = f"precision.{name}"
        if name in ctx.run.spec.precision.model_fields_set:
            yield ctx.finding(
                f"{ctx.key(key)} is read with `precision.fp16` only",
                key,
                severity="warning",
                label="has no effect",
                fix=Fix(f"remove {ctx.key(key)}", {key: None}, safe=True),
            )
