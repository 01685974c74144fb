"""ZenFlow with another optimizer than Adam.

## What it checks
`zenflow` in `zero_optimization` with an `optimizer.type` other than Adam and AdamW.

## Why it fails
The share of the gradients that ZenFlow applies on the GPU is stepped by an AdamW of its own, whatever the optimizer
says; the rest by the optimizer that was asked for. Two rules train one matrix (run on 0.19.8 with SGD at stage 2), or
the first step fails, as with Lion, whose CPU kernel does not take ZenFlow's arguments (run as well; stage 3 was read).

## Example
```yaml
zero:
  stage: 3
  overlap_comm: true
  offload_optimizer:
    device: cpu
deepspeed:
  optimizer:
    type: Adagrad
    params:
      lr: 0.0001
      weight_decay: 0.0
  zero_optimization:
    zenflow:
      select_strategy: step
      select_interval: 1
      update_interval: 1
```

## Use instead
```yaml
zero:
  stage: 3
  overlap_comm: true
  offload_optimizer:
    device: cpu
deepspeed:
  optimizer:
    type: Adagrad
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
    "ZR037",
    "zenflow-with-another-optimizer",
    upstream="wrong",
    cites=(Cite("runtime/zenflow/zenflow_stage_1_and_2.py", "self.selective_optimizer = ZenFlowSelectiveAdamW("),),
    since="0.17.5",
    when=lambda ctx: ctx.stage > 0 and ctx.ds("zero_optimization.zenflow") is not None,
    unseen="needs CUDA, as ZenFlow at stage 3 does",
)
def check(ctx: Context) -> Iterator[Finding]:
    """ZenFlow brings an AdamW of its own."""
    if ctx.optimizer.name in ("", "adam", "adamw"):
        return
    key = ctx.spec_key("zero_optimization.zenflow")
    yield ctx.finding(
        f"{ctx.key(key)} steps its share of the gradients with AdamW, the rest with {ctx.optimizer.type}",
        key,
        label="two optimizers for one model",
        related=[(f"{ctx.optimizer.key}.type", "asked for here")],
        fix=Fix("remove it", {key: None}, effect=f"every gradient is applied by {ctx.optimizer.type}"),
        of_key=True,
    )
