"""DeepCompile without ZeRO.

## What it checks
`compile.deepcompile: true` at ZeRO stage 0 without `compile.passes`.

## Why it fails
DeepCompile schedules ZeRO's collectives. At stage 0 there are none: DeepSpeed logs a line at level info and uses the
plain torch compiler (run on 0.19.8).

## Example
```yaml
deepspeed:
  compile:
    deepcompile: true
```

## Use instead
```yaml
zero:
  stage: 1
deepspeed:
  compile:
    deepcompile: true
```
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.findings import Finding, Fix
from harness.gates.registry import Cite, Context, gate


@gate(
    "CC002",
    "deepcompile-at-stage-0",
    upstream="silent",
    cites=(Cite("runtime/engine.py", "Currently DeepCompile supports ZeRO stage 1, 2, or 3 only"),),
    since="0.16.6",
    when=lambda ctx: ctx.has_key("compile"),
)
def check(ctx: Context) -> Iterator[Finding]:
    """Nothing to schedule at stage 0."""
    if ctx.stage != 0 or ctx.ds("compile.deepcompile") is not True or ctx.ds("compile.passes"):
        return
    key = ctx.spec_key("compile.deepcompile")
    yield ctx.finding(
        f"{ctx.key(key)} falls back to the plain torch compiler at ZeRO stage 0",
        key,
        severity="warning",
        label="has no effect",
        related=[("zero.stage", "the stage is set here")],
        fix=Fix(f"remove {ctx.key(key)}, or use stage 1, 2 or 3", {key: None}, safe=True),
    )
