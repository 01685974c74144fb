"""Parameter offload that DeepCompile switches on by itself.

## What it checks
`compile.deepcompile: true` at stage 3 with parameters and optimizer offloaded to the CPU, and
`compile.offload_parameters` not true.

## Why it fails
DeepSpeed sets `compile.offload_parameters` itself when both ZeRO offloads say `cpu`, whatever the JSON says (read in
0.19.8). Worth knowing when the plan of memory or the speed surprises.

## Example
```yaml
zero:
  stage: 3
  offload_param:
    device: cpu
  offload_optimizer:
    device: cpu
deepspeed:
  compile:
    deepcompile: true
```

## Use instead
```yaml
zero:
  stage: 3
  offload_param:
    device: cpu
  offload_optimizer:
    device: cpu
deepspeed:
  compile:
    deepcompile: true
    offload_parameters: true
```
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.findings import Finding, Fix
from harness.gates.registry import Cite, Context, gate


@gate(
    "CC008",
    "parameter-offload-switched-on-by-deepcompile",
    upstream="silent",
    cites=(Cite("runtime/engine.py", "compile_config.offload_parameters = True"),),
    since="0.19.8",
    when=lambda ctx: ctx.has_key("compile"),
    unseen="needs CUDA",
)
def check(ctx: Context) -> Iterator[Finding]:
    """A switch that is thrown elsewhere."""
    both = ctx.offload_device("offload_param") == ctx.offload_device("offload_optimizer") == "cpu"
    if ctx.stage != 3 or not both or ctx.ds("compile.deepcompile") is not True:
        return
    key = ctx.spec_key("compile.offload_parameters")
    if ctx.ds("compile.offload_parameters") is True:
        return
    yield ctx.finding(
        f"{ctx.key(key)} is switched on by DeepSpeed itself, since both offloads are `cpu`",
        ctx.spec_key("compile.deepcompile"),
        severity="info",
        related=[("zero.offload_param.device", "offloaded here")],
        fix=Fix(f"write {ctx.key(key)}: true, which is what happens", {key: True}, safe=True),
    )
