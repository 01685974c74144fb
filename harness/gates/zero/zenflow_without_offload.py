"""ZenFlow without an offloaded optimizer.

## What it checks
`zenflow` in `zero_optimization` at stage 1 or 2 without `zero.offload_optimizer` on the CPU.

## Why it fails
ZenFlow decides which gradients the GPU applies and which the CPU. Without offload it raises when the optimizer is
built: "Zenflow must be used with cpu offload" (run on 0.19.8).

## Example
```yaml
zero:
  stage: 2
deepspeed:
  zero_optimization:
    zenflow:
      select_strategy: step
      select_interval: 1
      update_interval: 1
```

## Use instead
```yaml
zero:
  stage: 2
```
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.findings import Finding, Fix
from harness.gates.registry import Cite, Context, gate


@gate(
    "ZR031",
    "zenflow-without-offload",
    upstream="raises",
    cites=(Cite("runtime/zenflow/zenflow_stage_1_and_2.py", "Zenflow must be used with cpu offload"),),
    since="0.17.5",
    when=lambda ctx: ctx.stage in (1, 2) and ctx.ds("zero_optimization.zenflow") is not None,
)
def check(ctx: Context) -> Iterator[Finding]:
    """ZenFlow shares the step with the CPU."""
    if ctx.offload_device("offload_optimizer") != "none":
        return
    key = ctx.spec_key("zero_optimization.zenflow")
    yield ctx.finding(
        f"{ctx.key(key)} needs the optimizer on the CPU, and it is not offloaded",
        key,
        notes=[f"set {ctx.key('zero.offload_optimizer.device')} to `cpu` if ZenFlow is what you want"],
        fix=Fix("remove it", {key: None}, effect="all gradients are applied in each step"),
        of_key=True,
    )
