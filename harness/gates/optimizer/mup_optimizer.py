"""An optimizer of the package mup.

## What it checks
`optimizer.type` MuAdam, MuAdamW or MuSGD.

## Why it fails
DeepSpeed imports them from `mup`. Without the package it logs a line and fails with `UnboundLocalError` (run on
0.19.8), and the optimizers themselves want a model with base shapes set by `mup.set_base_shapes`, which a run spec
does not do.

## Example
```yaml
zero:
  stage: 1
deepspeed:
  optimizer:
    type: MuAdamW
    params:
      lr: 1.0e-4
```

## Use instead
```yaml
zero:
  stage: 1
deepspeed:
  optimizer:
    type: AdamW
    params:
      lr: 1.0e-4
```
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.findings import Finding, Fix
from harness.gates.registry import Cite, Context, gate


@gate(
    "OP015",
    "optimizer-of-another-package",
    upstream="raises",
    cites=(Cite("runtime/engine.py", "Install mup to use MuAdam optimizer"),),
    when=lambda ctx: ctx.optimizer.name in ("muadam", "muadamw", "musgd"),
)
def check(ctx: Context) -> Iterator[Finding]:
    """It takes a package, and a model made for it."""
    place = "deepspeed.optimizer.type"
    better = "SGD" if ctx.optimizer.name == "musgd" else "AdamW"
    yield ctx.finding(
        f"`{ctx.optimizer.type}` needs the package `mup` and a model with its base shapes",
        place,
        notes=["without the package DeepSpeed fails with an UnboundLocalError when it builds the engine"],
        fix=Fix(f"use `{better}`", {place: better}, effect=f"trains with {better}, without mup's scaling"),
        severity="error" if ctx.run.kind == "spec" else "warning",
    )
