"""An optimizer that has no CPU version.

## What it checks
Lamb, and Lion without an offloaded optimizer, where the accelerator is the CPU.

## Why it fails
DeepSpeed's FusedLamb and FusedLion are CUDA kernels: `ValueError: This op had not been implemented on CPU backend`
when the engine is built (run on 0.19.8). Lion has a CPU version that is taken for an offloaded optimizer.

## Example
```yaml
zero:
  stage: 0
cluster:
  gpu: cpu
deepspeed:
  optimizer:
    type: Lamb
    params:
      lr: 1.0e-3
```

## Use instead
```yaml
zero:
  stage: 0
cluster:
  gpu: cpu
deepspeed:
  optimizer:
    type: AdamW
    params:
      lr: 1.0e-3
```
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.findings import Finding, Fix
from harness.gates.optimizer.known import offloaded
from harness.gates.registry import Cite, Context, gate


@gate(
    "OP014",
    "optimizer-without-a-cpu-version",
    upstream="raises",
    cites=(
        Cite("runtime/engine.py", "optimizer = FusedLion(model_parameters, **optimizer_parameters)"),
        Cite("runtime/engine.py", "optimizer = FusedLamb(model_parameters, **optimizer_parameters)"),
    ),
    needs=("the accelerator",),
    when=lambda ctx: ctx.optimizer.name in ("lamb", "lion"),
)
def check(ctx: Context) -> Iterator[Finding]:
    """CUDA kernels."""
    lion = ctx.optimizer.name == "lion"
    if ctx.accelerator != "cpu" or (lion and offloaded(ctx)):
        return
    device = "zero.offload_optimizer.device"
    yield ctx.finding(
        f"DeepSpeed's {ctx.optimizer.type} is not implemented for the CPU accelerator",
        "deepspeed.optimizer.type",
        fix=Fix(f"set {ctx.key(device)} to `cpu`", {device: "cpu"}, effect="takes the CPU's version of Lion")
        if lion
        else Fix("use `AdamW`", {"deepspeed.optimizer.type": "AdamW"}, effect="trains with AdamW"),
    )
