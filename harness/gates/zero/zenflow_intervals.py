"""ZenFlow intervals that contradict each other.

## What it checks
Three pairs of `zenflow` keys: `select_strategy: auto`, the default, with a number as `select_interval`; `step` or
`epoch` without one; `step` with a `select_interval` below `update_interval`.

## Why it fails
All three end in an exception when the engine is built. The first raises a `Warning` as an exception (run on 0.19.8).

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
      select_interval: 1
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
  gradient_accumulation_steps: 2
deepspeed:
  zero_optimization:
    zenflow:
      select_strategy: step
      select_interval: 2
      update_interval: 2
```
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.findings import Finding, Fix
from harness.gates.registry import Cite, Context, gate


@gate(
    "ZR034",
    "zenflow-intervals-refused",
    upstream="raises",
    cites=(
        Cite("runtime/zenflow/engine.py", "Select interval must be greater or equal to update interval"),
        Cite("runtime/zenflow/engine.py", "If don't use auto select strategy, select_interval must be a number"),
    ),
    since="0.17.5",
    when=lambda ctx: ctx.ds("zero_optimization.zenflow") is not None,
)
def check(ctx: Context) -> Iterator[Finding]:
    """Strategy and intervals depend on each other."""
    zenflow = "zero_optimization.zenflow"
    strategy = ctx.ds(f"{zenflow}.select_strategy", "auto")
    interval, every = ctx.ds(f"{zenflow}.select_interval"), ctx.ds(f"{zenflow}.update_interval")
    selected, key = ctx.spec_key(f"{zenflow}.select_strategy"), ctx.spec_key(f"{zenflow}.select_interval")
    if not isinstance(every, int):
        return  # ZR032 names values for all three
    if strategy == "auto" and isinstance(interval, int):
        message = f"{ctx.key(key)} is {interval}, which the `auto` strategy does not take"
    elif strategy != "auto" and interval is None:
        message = f"{ctx.key(selected)} is `{strategy}`, which needs a number as `select_interval`"
    elif strategy == "step" and isinstance(interval, int) and interval < every:
        message = f"{ctx.key(key)} is {interval}, less than the `update_interval` of {every}"
    else:
        return
    new = max(every, interval or 1)
    yield ctx.finding(
        message,
        key if ctx.has_key(f"{zenflow}.select_interval") else selected,
        fix=Fix(
            f"set `select_strategy` to `step` and `select_interval` to {new}",
            {selected: "step", key: new},
            safe=True,
            effect=f"important gradients are chosen anew every {new} micro-batches",
        ),
    )
