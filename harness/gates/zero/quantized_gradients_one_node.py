"""Quantized gradients on one node.

## What it checks
`zero_quantized_gradients: true` at stage 3 when all ranks are on one host.

## Why it fails
DeepSpeed quantizes gradients for the way between nodes. On one node it takes the ordinary reduce-scatter (run on
0.19.8: the losses of the plain run), after it has made the groups.

## Example
```yaml
zero:
  stage: 3
deepspeed:
  zero_optimization:
    zero_quantized_gradients: true
```
```hostfile
worker-0 slots=8
```

## Use instead
```yaml
zero:
  stage: 3
```
```hostfile
worker-0 slots=8
```
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.findings import Finding, Fix
from harness.gates.registry import Cite, Context, gate


@gate(
    "ZR021",
    "quantized-gradients-on-one-node",
    upstream="silent",
    cites=(Cite("runtime/zero/stage3.py", "if self.all2all_process_group is not None and num_nodes > 1:"),),
    needs=("hosts",),
    when=lambda ctx: ctx.stage == 3 and ctx.ds("zero_optimization.zero_quantized_gradients") is True,
)
def check(ctx: Context) -> Iterator[Finding]:
    """It is made for the way between nodes."""
    if ctx.slots is None or len(ctx.slots) != 1:
        return
    if ctx.ds("zero_optimization.reduce_scatter", True) is not True or ctx.optimizer.name == "muon":
        return  # refused: ZR022
    key = ctx.spec_key("zero_optimization.zero_quantized_gradients")
    yield ctx.finding(
        f"{ctx.key(key)} has no effect on one host with {ctx.slots[0]} ranks",
        key,
        label="for several nodes",
        fix=Fix("remove it", {key: None}, effect="on several nodes, full precision"),
        severity="warning",
    )
