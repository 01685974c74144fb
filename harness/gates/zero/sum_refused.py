"""Summed gradients where DeepSpeed only averages.

## What it checks
`gradient_allreduce_op: sum` with stage 3, with ZenFlow or with DeepCompile.

## Why it fails
DeepSpeed refuses each of the three while it reads the configuration, on every rank (run on 0.19.8).

## Example
```yaml
zero:
  stage: 3
deepspeed:
  gradient_allreduce_op: sum
```

## Use instead
```yaml
zero:
  stage: 3
deepspeed:
  gradient_allreduce_op: mean
```
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.findings import Finding, Fix
from harness.gates.registry import Cite, Context, gate


@gate(
    "ZR007",
    "summed-gradients-refused",
    upstream="raises",
    cites=(Cite("runtime/config.py", "='sum' is not supported with ZeRO stage 3"),),
    since="0.19.6",
    when=lambda ctx: str(ctx.ds("gradient_allreduce_op", "mean")).lower() == "sum",
)
def check(ctx: Context) -> Iterator[Finding]:
    """Three features only average."""
    key = ctx.spec_key("gradient_allreduce_op")
    if ctx.stage == 3:
        other, where = "ZeRO stage 3", "zero.stage"
    elif ctx.ds("zero_optimization.zenflow") is not None:
        other, where = "ZenFlow", ctx.spec_key("zero_optimization.zenflow")
    elif ctx.ds("compile.deepcompile") is True:
        other, where = "DeepCompile", ctx.spec_key("compile.deepcompile")
    else:
        return
    yield ctx.finding(
        f"{ctx.key(key)} is `sum`, which DeepSpeed refuses with {other}",
        key,
        related=[(where, "set here")],
        fix=Fix(
            f"set {ctx.key(key)} to `mean` and multiply the learning rate by the data-parallel ranks",
            {key: "mean"},
            effect="gradients are averaged: the same learning rate takes smaller steps",
        ),
    )
