"""ZenFlow at stage 3 without CUDA.

## What it checks
`zenflow` in `zero_optimization` at stage 3 on the CPU accelerator.

## Why it fails
The selective optimizer of stage 3 allocates on CUDA by name: "Torch not compiled with CUDA enabled" when the engine is
built (run on 0.19.8).

## Example
```yaml
zero:
  stage: 3
  overlap_comm: true
  offload_optimizer:
    device: cpu
train:
  gradient_accumulation_steps: 2
deepspeed:
  zero_optimization:
    zenflow:
      select_strategy: step
      select_interval: 2
      update_interval: 2
cluster:
  gpu: cpu
```

## Use instead
```yaml
zero:
  stage: 3
  overlap_comm: true
  offload_optimizer:
    device: cpu
train:
  gradient_accumulation_steps: 2
deepspeed:
  zero_optimization:
    zenflow:
      select_strategy: step
      select_interval: 2
      update_interval: 2
cluster:
  gpu: H100-80GB
```
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.findings import Finding, Fix
from harness.gates.registry import Cite, Context, gate


@gate(
    "ZR036",
    "zenflow-at-stage-3-off-cuda",
    upstream="crashes",
    cites=(Cite("runtime/zenflow/engine_stage3.py", "ZenFlowSelectiveAdamW_stage3"),),
    since="0.18.1",
    needs=("the accelerator",),
    when=lambda ctx: ctx.stage == 3 and ctx.ds("zero_optimization.zenflow") is not None,
)
def check(ctx: Context) -> Iterator[Finding]:
    """Stage 3 allocates on CUDA by name."""
    if ctx.accelerator == "cuda":
        return
    key = ctx.spec_key("zero_optimization.zenflow")
    yield ctx.finding(
        f"{ctx.key(key)} at stage 3 needs CUDA, this run is on `{ctx.accelerator}`",
        key,
        label="allocates on CUDA",
        related=[("zero.stage", "the stage is set here")],
        fix=Fix("remove it", {key: None}, safe=True, effect="all gradients are applied in each step"),
        of_key=True,
    )
