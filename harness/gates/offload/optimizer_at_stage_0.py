"""Optimizer offload without ZeRO.

## What it checks
`zero.offload_optimizer.device` other than `none` with `zero.stage: 0`.

## Why it fails
At stage 0 nothing is offloaded. DeepSpeed only swaps the optimizer's class for DeepSpeedCPUAdam, which runs on the CPU
accelerator (run on 0.19.8) and asserts in the first step on a GPU, whose parameters it cannot touch (read).

## Example
```yaml
zero:
  stage: 0
  offload_optimizer:
    device: cpu
```

## Use instead
```yaml
zero:
  stage: 1
  offload_optimizer:
    device: cpu
```
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.findings import Finding, Fix
from harness.gates.registry import Cite, Context, gate


@gate(
    "OF004",
    "optimizer-offload-without-zero",
    upstream="wrong",
    cites=(Cite("ops/adam/cpu_adam.py", "CPUAdam param is on"),),
    when=lambda ctx: ctx.has_key("zero_optimization.stage") and not ctx.is_auto("zero_optimization.stage"),
)
def check(ctx: Context) -> Iterator[Finding]:
    """Optimizer offload starts at stage 1."""
    device = ctx.offload_device("offload_optimizer")
    if device == "none" or ctx.stage != 0:
        return
    stage = 3 if device == "nvme" else 1
    yield ctx.finding(
        "the optimizer is not offloaded at ZeRO stage 0",
        "zero.offload_optimizer.device",
        label="needs stage 1 or higher",
        related=[("zero.stage", "the stage is set here")],
        notes=["on a GPU DeepSpeed fails in the first step: CPUAdam finds its parameters on the device"],
        fix=Fix(
            f"set {ctx.key('zero.stage')} to {stage}",
            {"zero.stage": stage},
            effect="the same steps with sharded optimizer states",
        ),
    )
