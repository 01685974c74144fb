"""Progress printed every 0 steps.

## What it checks
`steps_per_print: 0`.

## Why it fails
DeepSpeed takes the step count modulo this number: ZeroDivisionError at the end of the first step (run on 0.19.8).
Null switches the print-out off.

## Example
```yaml
deepspeed:
  steps_per_print: 0
```

## Use instead
```yaml
logging:
  logging_steps: 10
```
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.findings import Finding, Fix
from harness.gates.registry import Cite, Context, gate


@gate(
    "UT004",
    "print-interval-of-zero",
    upstream="raises",
    cites=(Cite("runtime/engine.py", "(self.global_steps + 1) % self.steps_per_print() == 0"),),
)
def check(ctx: Context) -> Iterator[Finding]:
    """Null, not 0."""
    value = ctx.ds("steps_per_print")
    if isinstance(value, bool) or value != 0:
        return
    key = ctx.spec_key("steps_per_print")
    yield ctx.finding(
        f"{ctx.key(key)} is 0, by which DeepSpeed divides at the first step",
        key,
        notes=["null, not 0, switches the print-out off"],
        fix=Fix(f"remove {ctx.key(key)}", {key: None}, safe=True),
    )
