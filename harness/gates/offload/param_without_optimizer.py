"""Parameters offloaded, the optimizer left on the device.

## What it checks
`zero.offload_param` at stage 3 with an optimizer that is not offloaded.

## Why it fails
It runs. The 16-bit parameters are 2 bytes each; master weights and the two states of Adam are 12, and those stay on the
device (run on 0.19.8). Who lacks memory offloads the optimizer first.

## Example
```yaml
zero:
  stage: 3
  offload_param:
    device: cpu
```

## Use instead
```yaml
zero:
  stage: 3
  offload_param:
    device: cpu
  offload_optimizer:
    device: cpu
```
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.findings import Finding, Fix
from harness.gates.registry import Cite, Context, gate


@gate(
    "OF007",
    "parameters-offloaded-but-not-the-optimizer",
    upstream="silent",
    cites=(Cite("runtime/zero/stage3.py", "if offload_param_config is not None and offload_param_config.device"),),
    when=lambda ctx: ctx.stage == 3 and ctx.optimizer.type is not None,
)
def check(ctx: Context) -> Iterator[Finding]:
    """The optimizer is the larger part."""
    if ctx.offload_device("offload_param") == "none" or ctx.offload_device("offload_optimizer") != "none":
        return
    if ctx.has_key("zero_optimization.offload_optimizer") and not ctx.has_key(
        "zero_optimization.offload_optimizer.device"
    ):
        return  # OF006
    yield ctx.finding(
        f"{ctx.key('zero.offload_param')} moves 2 bytes a parameter, the optimizer's 12 stay on the device",
        "zero.offload_param.device",
        label="the smaller part",
        fix=Fix(
            f"set {ctx.key('zero.offload_optimizer.device')} to `cpu`",
            {"zero.offload_optimizer.device": "cpu"},
            effect="the same steps, with the optimizer on the CPU",
        ),
        severity="warning",
    )
