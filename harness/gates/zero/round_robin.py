"""Round-robin gradients and a later resume.

## What it checks
`zero.round_robin_gradients: true` at stage 1 or 2.

## Why it fails
It works, and it decides the order of the parameters in the checkpoint's optimizer files. A checkpoint that was saved
with it and is loaded without it, or the other way, loads without a word and puts the weights of one parameter into
another (run on 0.16.9 to 0.19.8).

## Example
```yaml
zero:
  stage: 2
  round_robin_gradients: true
```

## Use instead
```yaml
zero:
  stage: 2
```
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.findings import Finding, Fix
from harness.gates.registry import Cite, Context, gate


@gate(
    "ZR009",
    "round-robin-gradients-and-resuming",
    upstream="silent",
    cites=(Cite("runtime/zero/stage_1_and_2.py", "self.round_robin_gradients = round_robin_gradients"),),
    when=lambda ctx: ctx.stage in (1, 2),
)
def check(ctx: Context) -> Iterator[Finding]:
    """It is part of the checkpoint's layout."""
    if ctx.ds("zero_optimization.round_robin_gradients") is not True:
        return
    yield ctx.finding(
        f"{ctx.key('zero.round_robin_gradients')} must never change between saving a checkpoint and resuming from it",
        "zero.round_robin_gradients",
        label="part of the checkpoint's layout",
        notes=["a checkpoint that is loaded with another value has its parameters permuted, without an error"],
        fix=Fix(
            f"leave {ctx.key('zero.round_robin_gradients')} out of runs that start anew",
            {"zero.round_robin_gradients": None},
            effect="the same steps; checkpoints of runs that had it can then not be resumed",
        ),
        severity="info",
    )
