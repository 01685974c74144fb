"""ZenFlow without ZeRO.

## What it checks
`zenflow` in `zero_optimization` with `zero.stage: 0`.

## Why it fails
Initialisation passes, the first step does not: AttributeError, because the ordinary optimizer has none of ZenFlow's
parts (run on 0.19.8).

## Example
```yaml
zero:
  stage: 0
deepspeed:
  zero_optimization:
    zenflow:
      select_strategy: step
      select_interval: 1
      update_interval: 1
```

## Use instead
```yaml
zero:
  stage: 0
```
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.findings import Finding, Fix
from harness.gates.registry import Cite, Context, gate


@gate(
    "ZR035",
    "zenflow-without-zero",
    upstream="crashes",
    cites=(Cite("runtime/zenflow/engine.py", "engine.zenflow = True"),),
    since="0.17.5",
    when=lambda ctx: ctx.stage == 0 and ctx.has_key("zero_optimization.stage"),
)
def check(ctx: Context) -> Iterator[Finding]:
    """Stage 0 has none of its parts."""
    key = ctx.spec_key("zero_optimization.zenflow")
    if ctx.ds("zero_optimization.zenflow") is None or ctx.is_auto("zero_optimization.stage"):
        return
    yield ctx.finding(
        f"{ctx.key(key)} is a part of ZeRO, and at stage 0 the first step fails",
        key,
        label="no ZenFlow at stage 0",
        related=[("zero.stage", "the stage is set here")],
        fix=Fix("remove it", {key: None}, safe=True, effect="all gradients are applied in each step"),
        of_key=True,
    )
