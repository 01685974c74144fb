"""Partial optimizer offload below ZeRO stage 3.

## What it checks
`zero.offload_optimizer.ratio` below 1 with `zero.stage` 0, 1 or 2.

## Why it fails
DeepSpeed refuses it while it reads the configuration, on every rank: "Partial offloading only supported for ZeRO
Stage 3."

## Example
```yaml
zero:
  stage: 2
  offload_optimizer:
    device: cpu
    ratio: 0.5
```

## Use instead
```yaml
zero:
  stage: 3
  offload_optimizer:
    device: cpu
    ratio: 0.5
```
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.findings import Finding, Fix
from harness.gates.registry import Cite, Context, gate


@gate(
    "OF005",
    "partial-offload-below-stage-3",
    upstream="raises",
    cites=(Cite("runtime/zero/config.py", "Partial offloading only supported for ZeRO Stage 3."),),
    when=lambda ctx: ctx.has_key("zero_optimization.stage") and not ctx.is_auto("zero_optimization.stage"),
)
def check(ctx: Context) -> Iterator[Finding]:
    """A share of the optimizer on the CPU is a feature of stage 3."""
    zero = ctx.run.spec.zero
    if zero.offload_optimizer is None or zero.offload_optimizer.ratio == 1.0 or zero.stage == 3:
        return
    yield ctx.finding(
        f"{ctx.key('zero.offload_optimizer.ratio')} is {zero.offload_optimizer.ratio:g}, only stage 3 offloads a part",
        "zero.offload_optimizer.ratio",
        related=[("zero.stage", "the stage is set here")],
        notes=["DeepSpeed refuses this once every rank has started"],
        fix=Fix(
            f"set {ctx.key('zero.offload_optimizer.ratio')} to 1.0",
            {"zero.offload_optimizer.ratio": 1.0},
            effect="all optimizer states on the CPU",
        ),
    )
