"""Elastic checkpoints of the old kind.

## What it checks
`elastic_checkpoint: true` in `zero_optimization`, at any stage but 0.

## Why it fails
The name promises that a checkpoint can be loaded with another number of ranks. At stage 3 DeepSpeed warns and ignores
it; at stages 1 and 2 loading with another number of ranks is refused all the same (run on 0.19.8: saved with two ranks,
loaded with one). With an optimizer that keeps no `step` in its parameter groups (any but Adam and AdamW) not even the
same ranks can load it: a bare assertion (run on 0.19.8). The universal checkpoint does what was meant.

## Example
```yaml
zero:
  stage: 2
deepspeed:
  zero_optimization:
    elastic_checkpoint: true
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
    "ZR011",
    "elastic-checkpoint-of-old",
    upstream="silent",
    cites=(Cite("runtime/zero/config.py", "ZeRO-3 elastic checkpointing is deprecated and no longer supported"),),
    since="0.19.3",
    when=lambda ctx: ctx.stage > 0,
)
def check(ctx: Context) -> Iterator[Finding]:
    """The universal checkpoint took its place."""
    key = ctx.spec_key("zero_optimization.elastic_checkpoint")
    if ctx.ds("zero_optimization.elastic_checkpoint") is not True:
        return
    unloadable = ctx.stage < 3 and ctx.optimizer.name not in ("", "adam", "adamw")
    yield ctx.finding(
        f"checkpoints of {ctx.optimizer.type} with {ctx.key(key)} cannot be loaded"
        if unloadable
        else f"{ctx.key(key)} does not let a checkpoint be loaded with another number of ranks",
        key,
        label="a bare assertion at resume" if unloadable else "does not do what it says",
        notes=["convert to a universal checkpoint to change the number of ranks"],
        fix=Fix("remove it", {key: None}, effect="optimizer files are saved in the ordinary layout"),
        severity="error" if unloadable else "warning",
    )
