"""Partial offload with another optimizer than DeepSpeedCPUAdam.

## What it checks
`zero.offload_optimizer.ratio` below 1 at stage 3 with an optimizer that does not become DeepSpeedCPUAdam: any type but
Adam and AdamW, or these with `torch_adam: true`.

## Why it fails
DeepSpeed asserts "Hybrid Optimizer Only Supports DeepSpeedCPUAdam" when the engine is built, after every rank has its
weights (run on 0.19.8 with Adagrad and with torch's AdamW).

## Example
```yaml
zero:
  stage: 3
  offload_optimizer:
    device: cpu
    ratio: 0.5
deepspeed:
  optimizer:
    type: Adagrad
    params:
      lr: 0.01
```

## Use instead
```yaml
zero:
  stage: 3
  offload_optimizer:
    device: cpu
deepspeed:
  optimizer:
    type: Adagrad
    params:
      lr: 0.01
```
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.findings import Finding, Fix
from harness.gates.registry import Cite, Context, gate


@gate(
    "OF013",
    "partial-offload-without-cpu-adam",
    upstream="asserts",
    cites=(Cite("runtime/zero/stage3.py", "Hybrid Optimizer Only Supports DeepSpeedCPUAdam"),),
    when=lambda ctx: ctx.stage == 3 and ctx.offload_device("offload_optimizer") != "none",
)
def check(ctx: Context) -> Iterator[Finding]:
    """The other part is stepped by a copy of its settings."""
    ratio, optimizer = ctx.ds("zero_optimization.offload_optimizer.ratio", 1.0), ctx.optimizer
    torch_adam = bool(optimizer.params.get("torch_adam"))
    if ratio == 1.0 or (optimizer.name in ("", "adam", "adamw") and not torch_adam):
        return
    key = "zero.offload_optimizer.ratio"
    what = f"{optimizer.type} of torch" if torch_adam else str(optimizer.type)
    yield ctx.finding(
        f"{ctx.key(key)} is {ratio:g}, which only DeepSpeedCPUAdam can do, not {what}",
        key,
        related=[(f"{optimizer.key}.type", "the optimizer is set here")],
        fix=Fix(f"remove {ctx.key(key)}", {key: None}, effect="all optimizer states on the CPU"),
    )
