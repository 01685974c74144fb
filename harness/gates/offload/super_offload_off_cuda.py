"""SuperOffload without CUDA.

## What it checks
`super_offload: true` in `offload_optimizer` at stage 3 on another accelerator than CUDA.

## Why it fails
DeepSpeed asserts "SuperOffload only supports NVIDIA CUDA GPUs" when the engine is built (run on 0.19.8). It is made for
Grace Hopper and alike, where the way to the host is fast.

## Example
```yaml
zero:
  stage: 3
  offload_optimizer:
    device: cpu
deepspeed:
  zero_optimization:
    offload_optimizer:
      super_offload: true
cluster:
  gpu: cpu
```

## Use instead
```yaml
zero:
  stage: 3
  offload_optimizer:
    device: cpu
deepspeed:
  zero_optimization:
    offload_optimizer:
      super_offload: true
cluster:
  gpu: H100-80GB
```
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.findings import Finding, Fix
from harness.gates.registry import Cite, Context, gate


@gate(
    "OF016",
    "super-offload-off-cuda",
    upstream="asserts",
    cites=(Cite("runtime/superoffload/superoffload_stage3.py", "SuperOffload only supports NVIDIA CUDA GPUs"),),
    since="0.18.9",
    needs=("the accelerator",),
    when=lambda ctx: ctx.stage == 3 and ctx.ds("zero_optimization.offload_optimizer.super_offload") is True,
)
def check(ctx: Context) -> Iterator[Finding]:
    """It is made for superchips."""
    if ctx.accelerator == "cuda" or ctx.offload_device("offload_optimizer") == "none":
        return
    key = ctx.spec_key("zero_optimization.offload_optimizer.super_offload")
    yield ctx.finding(
        f"{ctx.key(key)} needs CUDA, this run is on `{ctx.accelerator}`",
        key,
        fix=Fix("remove it", {key: None}, safe=True, effect="ordinary offload: the same steps"),
    )
