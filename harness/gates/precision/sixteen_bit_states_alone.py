"""Optimizer states in bf16 without master weights in bf16.

## What it checks
`bf16.bf16_optimizer_states` without `bf16.bf16_master_weights_and_grads` at ZeRO stages 1 to 3.

## Why it fails
The states have the format of the master weights. DeepSpeed asserts it when it reads the configuration (run on 0.19.8).

## Example
```yaml
precision:
  bf16: true
zero:
  stage: 2
deepspeed:
  bf16:
    bf16_optimizer_states: true
```

## Use instead
```yaml
precision:
  bf16: true
zero:
  stage: 2
deepspeed:
  bf16:
    bf16_master_weights_and_grads: true
    bf16_optimizer_states: true
```
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.findings import Finding, Fix
from harness.gates.registry import Cite, Context, gate


@gate(
    "PR023",
    "states-in-16-bit-without-masters",
    upstream="asserts",
    since="0.18.3",
    cites=(Cite("runtime/config.py", "bf16_optimizer_states requires bf16_master_weights_and_grads to be enabled."),),
    when=lambda ctx: ctx.stage > 0,
)
def check(ctx: Context) -> Iterator[Finding]:
    """Both or none."""
    if ctx.ds("bf16.bf16_optimizer_states") is not True or ctx.ds("bf16.bf16_master_weights_and_grads") is True:
        return
    place, masters = "deepspeed.bf16.bf16_optimizer_states", "deepspeed.bf16.bf16_master_weights_and_grads"
    yield ctx.finding(
        f"{ctx.key(place)} needs {ctx.key(masters)}",
        place,
        notes=["DeepSpeed asserts this when it reads its configuration"],
        fix=Fix(f"set {ctx.key(masters)} to true", {masters: True}, effect="keeps master weights in bf16 as well"),
    )
