"""bf16 without the overflow check.

## What it checks
`bf16.check_grad_overflow: false`.

## Why it fails
At ZeRO stages 1 and 2 a gradient with inf or nan goes into the weights: one bad batch and every later loss is nan, with
clipping too (run on 0.19.8). At stages 0 and 3 the key is not read and the step is skipped all the same. Up to 0.19.2
false was the default.

## Example
```yaml
precision:
  bf16: true
zero:
  stage: 2
deepspeed:
  bf16:
    check_grad_overflow: false
```

## Use instead
```yaml
precision:
  bf16: true
zero:
  stage: 2
```
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.findings import Finding, Fix
from harness.gates.registry import Cite, Context, gate


@gate(
    "PR020",
    "overflow-check-switched-off",
    upstream="silent",
    since="0.19.3",
    cites=(Cite("runtime/engine.py", "check_grad_overflow = self._config.bfloat16_config.check_grad_overflow"),),
    when=lambda ctx: ctx.is_enabled("bf16"),
)
def check(ctx: Context) -> Iterator[Finding]:
    """One bad batch should not end a run."""
    if ctx.ds("bf16.check_grad_overflow") is not False:
        return
    read = ctx.stage in (1, 2)
    place = "deepspeed.bf16.check_grad_overflow"
    yield ctx.finding(
        "one gradient with inf or nan makes all weights nan"
        if read
        else f"{ctx.key(place)} is not read at ZeRO stage {ctx.stage}",
        place,
        label="" if read else "has no effect",
        related=[("zero.stage", "the stage is set here")],
        fix=Fix(
            f"remove {ctx.key(place)}",
            {place: None},
            safe=not read,
            effect="a step with inf or nan is skipped" if read else "",
        ),
        severity="warning",
    )
