"""Unused parameters are not looked for.

## What it checks
`ignore_unused_parameters: false` in `zero_optimization`, except at stages 1 and 2 with an offloaded optimizer.

## Why it fails
DeepSpeed looks for parameters without a gradient in one place only: where stages 1 and 2 compute the norm of offloaded
gradients. Everywhere else the key is not read, and a run with unused parameters goes on without a word (run on 0.19.8
at stages 1, 2 and 3).

## Example
```yaml
zero:
  stage: 2
deepspeed:
  zero_optimization:
    ignore_unused_parameters: false
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
    "ZR023",
    "unused-parameters-are-not-looked-for",
    upstream="silent",
    cites=(Cite("runtime/zero/stage_1_and_2.py", "assert self.ignore_unused_parameters"),),
    when=lambda ctx: ctx.ds("zero_optimization.ignore_unused_parameters") is False,
)
def check(ctx: Context) -> Iterator[Finding]:
    """The check is in the code of offloaded gradients alone."""
    if ctx.stage in (1, 2) and ctx.offload_device("offload_optimizer") != "none":
        return
    key = ctx.spec_key("zero_optimization.ignore_unused_parameters")
    yield ctx.finding(
        f"{ctx.key(key)} is `false`, but DeepSpeed looks for unused parameters only at stages 1 and 2 with offload",
        key,
        label="not looked for here",
        related=[("zero.stage", "the stage is set here")],
        fix=Fix("remove it, and look for `p.grad is None` in the script", {key: None}, safe=True),
        severity="warning",
    )
