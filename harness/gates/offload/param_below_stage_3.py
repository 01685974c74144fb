"""Parameter offload below ZeRO stage 3.

## What it checks
`zero.offload_param.device` other than `none` with `zero.stage` 0, 1 or 2.

## Why it fails
DeepSpeed reads `offload_param` at stage 3 only. Below it, the block is accepted and nothing is offloaded: the
parameters stay on the device, NVMe paths are not even looked at, and the exit code is 0 (run on 0.19.8 at stages 0, 1
and 2). Files that circulate have it beside an offloaded optimizer, where it is only not needed: a warning in a
DeepSpeed JSON, an error in a run spec.

## Example
```yaml
zero:
  stage: 2
  offload_param:
    device: cpu
  offload_optimizer:
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
    "OF001",
    "parameter-offload-below-stage-3",
    upstream="silent",
    cites=(Cite("runtime/engine.py", "offload_param_config=self.zero_offload_param()"),),
    when=lambda ctx: ctx.has_key("zero_optimization.stage") and not ctx.is_auto("zero_optimization.stage"),
)
def check(ctx: Context) -> Iterator[Finding]:
    """Parameter offload is a feature of stage 3."""
    device = ctx.offload_device("offload_param")
    if device == "none" or ctx.stage == 3:
        return
    yield ctx.finding(
        f"parameters are not offloaded to {device} at ZeRO stage {ctx.stage}, only at stage 3",
        "zero.offload_param.device",
        label="has no effect",
        related=[("zero.stage", "the stage is set here")],
        notes=["DeepSpeed accepts this in silence and keeps the parameters on the device"],
        fix=Fix(
            f"set {ctx.key('zero.stage')} to 3",
            {"zero.stage": 3},
            effect="the same steps with sharded parameters, which are offloaded",
        ),
        severity="warning" if ctx.run.kind == "deepspeed-json" else "error",
    )
