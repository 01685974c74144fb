"""A scheduler of torch's on an optimizer that is none of torch's.

## What it checks
The name of a torch scheduler in `scheduler.type` at ZeRO stages 1 to 3, or in 16-bit at stage 0.

## Why it fails
DeepSpeed gives the scheduler its own wrapper of the optimizer, which torch does not take: `TypeError:
DeepSpeedZeroOptimizer is not an Optimizer` (run on 0.19.8). Only in fp32 at stage 0 there is no wrapper. A script can
pass a scheduler of its own to `deepspeed.initialize`.

## Example
```yaml
zero:
  stage: 2
deepspeed:
  scheduler:
    type: CosineAnnealingLR
    params:
      T_max: 100
```

## Use instead
```yaml
zero:
  stage: 2
deepspeed:
  scheduler:
    type: WarmupCosineLR
    params:
      total_num_steps: 100
      warmup_num_steps: 1
      warmup_type: linear
      warmup_min_ratio: 0.1
```
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.findings import Finding, Fix
from harness.gates.dtypes import model_dtype
from harness.gates.optimizer.known import TORCH_SCHEDULERS, schedule
from harness.gates.registry import Cite, Context, gate


@gate(
    "OP025",
    "torch-scheduler-with-a-wrapped-optimizer",
    upstream="raises",
    cites=(Cite("runtime/engine.py", "lr_scheduler = self._scheduler_from_config(self.optimizer)"),),
    when=lambda ctx: schedule(ctx) in TORCH_SCHEDULERS,
)
def check(ctx: Context) -> Iterator[Finding]:
    """torch wants an optimizer of torch's."""
    name, model = schedule(ctx), model_dtype(ctx)
    if ctx.stage == 0 and model in (None, "fp32"):
        return
    place = "deepspeed.scheduler"
    where = f"at ZeRO stage {ctx.stage}" if ctx.stage else f"in {model}"
    yield ctx.finding(
        f"torch's `{name}` does not take the optimizer that DeepSpeed wraps {where}",
        f"{place}.type",
        related=[("zero.stage", "the stage is set here")],
        notes=["DeepSpeed's own schedulers do: " + "WarmupLR, WarmupDecayLR, WarmupCosineLR, OneCycle, LRRangeTest"],
        fix=Fix(f"use one of DeepSpeed's, or remove {ctx.key(place)}", {place: None}, effect="the rate is constant"),
    )
