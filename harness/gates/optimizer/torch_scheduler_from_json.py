"""A scheduler that a configuration cannot describe.

## What it checks
Schedulers of torch's that need a function, other schedulers or a metric, in `scheduler.type` where torch's schedulers
run at all (fp32 at stage 0).

## Why it fails
`LambdaLR` and `MultiplicativeLR` want a function, `SequentialLR` and `ChainedScheduler` want schedulers, and a
configuration has neither: TypeError when the engine is built (run on 0.19.8 with LambdaLR). `ReduceLROnPlateau` wants
a metric at each step and is given the batch size, which never falls, so that the rate does.

## Example
```yaml
zero:
  stage: 0
deepspeed:
  scheduler:
    type: LambdaLR
    params:
      lr_lambda: linear
```

## Use instead
```yaml
zero:
  stage: 0
deepspeed:
  scheduler:
    type: WarmupDecayLR
    params:
      total_num_steps: 100
      warmup_min_lr: 1.0e-6
      warmup_max_lr: 1.0e-5
      warmup_num_steps: 10
```
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.findings import Finding, Fix
from harness.gates.dtypes import model_dtype
from harness.gates.optimizer.known import schedule
from harness.gates.registry import Cite, Context, gate

_NEEDS = {
    "LRScheduler": "is the base class of all schedulers",
    "LambdaLR": "needs a function",
    "MultiplicativeLR": "needs a function",
    "SequentialLR": "needs other schedulers",
    "ChainedScheduler": "needs other schedulers",
    "ReduceLROnPlateau": "needs a metric, and is given the batch size",
}


@gate(
    "OP026",
    "scheduler-that-needs-a-script",
    upstream="raises",
    cites=(Cite("runtime/engine.py", "self.lr_scheduler.step(self.train_batch_size())"),),
    when=lambda ctx: schedule(ctx) in _NEEDS,
)
def check(ctx: Context) -> Iterator[Finding]:
    """Some things cannot be written in JSON."""
    if ctx.stage > 0 or model_dtype(ctx) in ("bf16", "fp16"):
        return  # no scheduler of torch's runs there
    name, place = schedule(ctx), "deepspeed.scheduler"
    yield ctx.finding(
        f"`{name}` {_NEEDS[name]}, which a configuration cannot give it",
        f"{place}.type",
        notes=["a script can pass a scheduler of its own to `deepspeed.initialize`"],
        fix=Fix(f"use one of DeepSpeed's, or remove {ctx.key(place)}", {place: None}, effect="the rate is constant"),
    )
