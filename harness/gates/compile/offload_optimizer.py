"""Optimizer states offloaded by ZeRO and by DeepCompile.

## What it checks
`compile.offload_opt_states` together with `zero.offload_optimizer` at stage 3.

## Why it fails
Both move the same states. `engine.compile()` refuses: "compile.offload_opt_states cannot be combined with ZeRO's
offload_optimizer" (run on 0.19.8), which is after the engine has been built.

## Example
```yaml
zero:
  stage: 3
  offload_optimizer:
    device: cpu
deepspeed:
  compile:
    deepcompile: true
    offload_opt_states: true
```

## Use instead
```yaml
zero:
  stage: 3
deepspeed:
  compile:
    deepcompile: true
    offload_opt_states: true
```
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.findings import Finding, Fix
from harness.gates.registry import Cite, Context, gate


@gate(
    "CC003",
    "two-offloads-of-optimizer-states",
    upstream="raises",
    cites=(Cite("compile/init_z3.py", "compile.offload_opt_states cannot be combined with ZeRO's "),),
    since="0.19.4",
    when=lambda ctx: ctx.has_key("compile"),
    unseen="refused by engine.compile(), which needs CUDA",
)
def check(ctx: Context) -> Iterator[Finding]:
    """One of the two."""
    if ctx.ds("compile.offload_opt_states") is not True or ctx.ds("compile.deepcompile") is not True:
        return
    if ctx.stage != 3 or ctx.offload_device("offload_optimizer") == "none":
        return
    key = ctx.spec_key("compile.offload_opt_states")
    yield ctx.finding(
        f"{ctx.key(key)} and {ctx.key('zero.offload_optimizer')} both offload the optimizer states",
        key,
        related=[("zero.offload_optimizer.device", "offloaded by ZeRO here")],
        fix=Fix(f"remove {ctx.key(key)}", {key: None}, safe=True),
    )
