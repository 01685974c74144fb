"""ZenFlow replaces gradient accumulation.

## What it checks
`gradient_accumulation_steps` that differs from `zenflow.update_interval`.

## Why it fails
DeepSpeed overwrites the accumulation steps with the update interval when the engine is built. The global batch that was
asked for is still reported and is not what is trained: 8 steps asked, 2 done (run on 0.19.8 at stage 2; stage 3 shares
the code).

## Example
```yaml
zero:
  stage: 3
  overlap_comm: true
  offload_optimizer:
    device: cpu
train:
  gradient_accumulation_steps: 8
deepspeed:
  zero_optimization:
    zenflow:
      select_strategy: step
      select_interval: 2
      update_interval: 2
```

## Use instead
```yaml
zero:
  stage: 3
  overlap_comm: true
  offload_optimizer:
    device: cpu
train:
  gradient_accumulation_steps: 8
deepspeed:
  zero_optimization:
    zenflow:
      select_strategy: step
      select_interval: 8
      update_interval: 8
```
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.findings import Finding, Fix
from harness.gates.registry import Cite, Context, gate


@gate(
    "ZR033",
    "zenflow-overrides-accumulation",
    upstream="silent",
    cites=(Cite("runtime/zenflow/engine.py", "engine._config.gradient_accumulation_steps = engine.update_interval"),),
    since="0.17.5",
    when=lambda ctx: ctx.stage > 0 and ctx.ds("zero_optimization.zenflow") is not None,
    unseen="needs CUDA, as ZenFlow at stage 3 does",
)
def check(ctx: Context) -> Iterator[Finding]:
    """The update interval wins."""
    every = ctx.ds("zero_optimization.zenflow.update_interval")
    steps = ctx.run.batch.accumulation
    if not isinstance(every, int) or steps is None or steps == every:
        return
    key = ctx.spec_key("zero_optimization.zenflow.update_interval")
    sets = {key: steps}
    if ctx.ds("zero_optimization.zenflow.select_strategy") == "step":
        sets[ctx.spec_key("zero_optimization.zenflow.select_interval")] = steps
    yield ctx.finding(
        f"{ctx.key(key)} is {every}, so DeepSpeed accumulates {every} micro-batches instead of {steps}",
        key,
        label="replaces gradient accumulation",
        related=[("train.gradient_accumulation_steps", "asked for here")],
        fix=Fix(
            f"set {ctx.key(key)} to {steps}",
            sets,
            effect=f"the global batch is the one asked for, and unimportant gradients wait for {steps} micro-batches",
        ),
    )
