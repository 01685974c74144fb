"""Muon at stage 3 with reduce-scatter.

## What it checks
`optimizer.type: Muon` at ZeRO stage 3 with `reduce_scatter`, which is on unless it is switched off.

## Why it fails
Muon needs the whole gradient of a matrix. At stage 3 DeepSpeed refuses the pair when the engine is built: `Muon and
reduce scatter cannot be used together` (run on 0.19.8). From 0.17.6 to 0.18.8 it refused Muon at stage 3 in any case.

## Example
```yaml
train:
  max_grad_norm: 0.0
zero:
  stage: 3
deepspeed:
  optimizer:
    type: Muon
    params:
      lr: 2.0e-2
```

## Use instead
```yaml
train:
  max_grad_norm: 0.0
zero:
  stage: 3
  reduce_scatter: false
deepspeed:
  optimizer:
    type: Muon
    params:
      lr: 2.0e-2
```
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.findings import Finding, Fix
from harness.gates.registry import Cite, Context, gate


@gate(
    "OP018",
    "muon-with-reduce-scatter",
    upstream="raises",
    since="0.17.6",
    cites=(Cite("runtime/zero/stage3.py", "Muon and reduce scatter cannot be used together"),),
    when=lambda ctx: ctx.optimizer.name == "muon" and ctx.stage == 3,
)
def check(ctx: Context) -> Iterator[Finding]:
    """Whole gradients."""
    never = ctx.target.version < (0, 18, 9)
    scatter = "zero.reduce_scatter"
    if ctx.ds("zero_optimization.reduce_scatter", True) is not True and not never:
        return
    yield ctx.finding(
        "`Muon` does not run at ZeRO stage 3 before DeepSpeed 0.18.9"
        if never
        else "`Muon` does not run at ZeRO stage 3 with reduce-scatter, which is on by default",
        "deepspeed.optimizer.type",
        related=[("zero.stage", "the stage is set here"), (scatter, "switched on here")],
        notes=["DeepSpeed refuses it when it builds the engine"],
        fix=Fix(f"set {ctx.key('zero.stage')} to 2", {"zero.stage": 2}, effect="parameters are replicated")
        if never
        else Fix(f"set {ctx.key(scatter)} to false", {scatter: False}, safe=True, effect="gradients are all-reduced"),
    )
