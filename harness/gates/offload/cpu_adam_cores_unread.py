"""A share of cores for SuperOffload without SuperOffload.

## What it checks
`cpuadam_cores_perc` in `offload_optimizer` without `super_offload: true` at stage 3.

## Why it fails
Only the worker process of SuperOffload reads it; ordinary CPU Adam takes the threads that OpenMP gives it (read in
0.19.8).

## Example
```yaml
zero:
  stage: 3
  offload_optimizer:
    device: cpu
deepspeed:
  zero_optimization:
    offload_optimizer:
      cpuadam_cores_perc: 0.5
```

## Use instead
```yaml
zero:
  stage: 3
  offload_optimizer:
    device: cpu
```
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.findings import Finding, Fix
from harness.gates.registry import Cite, Context, gate


@gate(
    "OF018",
    "cores-for-super-offload-without-it",
    upstream="silent",
    cites=(Cite("runtime/superoffload/superoffload_utils.py", "cpuadam_cores_perc: float"),),
    since="0.18.0",
)
def check(ctx: Context) -> Iterator[Finding]:
    """Only SuperOffload reads it."""
    section = "zero_optimization.offload_optimizer"
    key = ctx.spec_key(f"{section}.cpuadam_cores_perc")
    if ctx.ds(f"{section}.cpuadam_cores_perc") is None or ctx.offload_device("offload_optimizer") == "none":
        return
    if ctx.ds(f"{section}.super_offload") is True:
        return
    yield ctx.finding(
        f"{ctx.key(key)} is read by SuperOffload alone, which is not switched on",
        key,
        label="has no effect",
        fix=Fix("remove it; `OMP_NUM_THREADS` sets the threads of CPU Adam", {key: None}, safe=True),
        severity="info",
        of_key=True,
    )
