"""Torch's Adam on the CPU.

## What it checks
`torch_adam: true` in the optimizer's parameters with `zero.offload_optimizer`.

## Why it fails
DeepSpeed then builds torch's AdamW and steps it on the CPU: correct, and several times slower than DeepSpeedCPUAdam
(run on 0.19.8 at stages 2 and 3). Its `weight_decay` is 0.01 where nothing is written, DeepSpeed's is 0.

## Example
```yaml
zero:
  stage: 2
  offload_optimizer:
    device: cpu
deepspeed:
  optimizer:
    type: AdamW
    params:
      lr: 0.0001
      weight_decay: 0.0
      torch_adam: true
```

## Use instead
```yaml
zero:
  stage: 2
  offload_optimizer:
    device: cpu
deepspeed:
  optimizer:
    type: AdamW
    params:
      lr: 0.0001
      weight_decay: 0.0
```
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.findings import Finding, Fix
from harness.gates.registry import Cite, Context, gate


@gate(
    "OF021",
    "torch-adam-offloaded",
    upstream="silent",
    cites=(Cite("runtime/engine.py", "torch_adam = optimizer_parameters.pop(TORCH_ADAM_PARAM, False)"),),
    when=lambda ctx: ctx.stage > 0 and ctx.offload_device("offload_optimizer") != "none",
)
def check(ctx: Context) -> Iterator[Finding]:
    """DeepSpeed's own kernel is the reason to offload."""
    if ctx.optimizer.name not in ("adam", "adamw") or ctx.optimizer.params.get("torch_adam") is not True:
        return
    if ctx.ds("zero_optimization.offload_optimizer.ratio", 1.0) < 1:
        return  # refused: OF013
    key = f"{ctx.optimizer.key}.params.torch_adam"
    yield ctx.finding(
        f"{ctx.key(key)} steps on the CPU in torch code, several times slower than DeepSpeedCPUAdam",
        key,
        related=[("zero.offload_optimizer.device", "offloaded here")],
        fix=Fix("remove it", {key: None}, effect="DeepSpeedCPUAdam: the same rule, rounded in another order"),
        severity="warning",
    )
