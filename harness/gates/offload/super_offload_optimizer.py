"""SuperOffload with another optimizer than Adam.

## What it checks
`super_offload: true` in `offload_optimizer` at stage 3 with an optimizer that does not become DeepSpeedCPUAdam.

## Why it fails
The worker process that steps on the CPU copies `betas`, `eps` and `amsgrad` out of the optimizer's groups; an optimizer
without them ends in a KeyError when the engine is built (read in 0.19.8).

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
    "OF017",
    "super-offload-without-adam",
    upstream="crashes",
    cites=(Cite("runtime/superoffload/superoffload_stage3.py", '"amsgrad": pg["amsgrad"]'),),
    since="0.18.0",
    when=lambda ctx: ctx.stage == 3 and ctx.ds("zero_optimization.offload_optimizer.super_offload") is True,
    unseen="needs CUDA",
)
def check(ctx: Context) -> Iterator[Finding]:
    """Its worker knows Adam alone."""
    if ctx.optimizer.name in ("", "adam", "adamw") or ctx.offload_device("offload_optimizer") == "none":
        return
    key = ctx.spec_key("zero_optimization.offload_optimizer.super_offload")
    yield ctx.finding(
        f"{ctx.key(key)} steps with Adam alone, this is {ctx.optimizer.type}",
        key,
        related=[(f"{ctx.optimizer.key}.type", "the optimizer is set here")],
        fix=Fix("remove it", {key: None}, safe=True, effect="ordinary offload: the same steps"),
    )
