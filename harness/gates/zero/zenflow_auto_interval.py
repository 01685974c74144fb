"""ZenFlow without an update interval.

## What it checks
`zenflow` in `zero_optimization` without `update_interval`, or with `update_interval: auto`, which is the default.

## Why it fails
DeepSpeed sets gradient accumulation to the update interval, and `auto` is 0. `backward` divides the loss by it: NaN at
the second step. A loop over `engine.gradient_accumulation_steps()` does nothing at all (run on 0.19.3 to 0.19.8 at
stages 1 and 2; stage 3 shares the code).

## Example
```yaml
zero:
  stage: 3
  overlap_comm: true
  offload_optimizer:
    device: cpu
deepspeed:
  zero_optimization:
    zenflow:
      topk_ratio: 0.05
```

## Use instead
```yaml
zero:
  stage: 3
  overlap_comm: true
  offload_optimizer:
    device: cpu
deepspeed:
  zero_optimization:
    zenflow:
      topk_ratio: 0.05
      select_strategy: step
      select_interval: 1
      update_interval: 1
```
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.findings import Finding, Fix
from harness.gates.registry import Cite, Context, gate


@gate(
    "ZR032",
    "zenflow-without-an-update-interval",
    upstream="wrong",
    cites=(Cite("runtime/zenflow/engine.py", "engine._config.gradient_accumulation_steps = engine.update_interval"),),
    since="0.17.5",
    when=lambda ctx: ctx.stage > 0 and ctx.ds("zero_optimization.zenflow") is not None,
    unseen="needs CUDA, as ZenFlow at stage 3 does",
)
def check(ctx: Context) -> Iterator[Finding]:
    """`auto` is 0 accumulation steps."""
    if isinstance(ctx.ds("zero_optimization.zenflow.update_interval"), int):
        return
    key = ctx.spec_key("zero_optimization.zenflow")
    steps = ctx.ds("gradient_accumulation_steps", 1)
    values = {"select_strategy": "step", "select_interval": steps, "update_interval": steps}
    yield ctx.finding(
        f"{ctx.key(key)} has no `update_interval`: DeepSpeed sets gradient accumulation to 0 and the loss to NaN",
        key,
        label="`auto` counts as 0",
        fix=Fix(
            f"set `select_strategy` to `step`, `select_interval` and `update_interval` to {steps}",
            {f"{key}.{name}": value for name, value in values.items()},
            effect="all gradients are applied in each optimizer step",
        ),
        of_key=True,
    )
