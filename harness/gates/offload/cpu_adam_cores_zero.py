"""SuperOffload with no cores.

## What it checks
`cpuadam_cores_perc: 0` in `offload_optimizer` with `super_offload: true` at stage 3.

## Why it fails
The configuration takes 0, the worker does not: ValueError "cpuadam_cores_perc must be between 0 and 1" when the engine
is built (read in 0.19.8).

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
      cpuadam_cores_perc: 0.0
```

## Use instead
```yaml
zero:
  stage: 3
  offload_optimizer:
    device: cpu
deepspeed:
  zero_optimization:
    offload_optimizer:
      super_offload: true
      cpuadam_cores_perc: 0.8
```
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.findings import Finding, Fix
from harness.gates.registry import Cite, Context, gate


@gate(
    "OF019",
    "super-offload-without-cores",
    upstream="raises",
    cites=(Cite("runtime/superoffload/superoffload_utils.py", "cpuadam_cores_perc must be between 0 and 1"),),
    since="0.18.0",
    when=lambda ctx: ctx.stage == 3 and ctx.ds("zero_optimization.offload_optimizer.super_offload") is True,
    unseen="needs CUDA",
)
def check(ctx: Context) -> Iterator[Finding]:
    """The worker needs cores."""
    key = ctx.spec_key("zero_optimization.offload_optimizer.cpuadam_cores_perc")
    if ctx.ds("zero_optimization.offload_optimizer.cpuadam_cores_perc", 0.8) != 0:
        return
    yield ctx.finding(
        f"{ctx.key(key)} is 0: no core is left for the optimizer",
        key,
        fix=Fix(f"set {ctx.key(key)} to 0.8, DeepSpeed's default", {key: 0.8}, safe=True),
    )
