"""Quantized gradients on hosts with different numbers of ranks.

## What it checks
`zero_quantized_gradients: true` at stage 3 with a hostfile whose hosts have different slots.

## Why it fails
Every rank cuts the world by the number of devices that it sees itself. With 8 and 4 slots the first host finds one node
and a half and asserts "num_gpus not equal to device per node", the second makes groups of four that the first never
joins (read in 0.19.8).

## Example
```yaml
zero:
  stage: 3
deepspeed:
  zero_optimization:
    zero_quantized_gradients: true
ignore:
  HO007: these are the hosts that we have
```
```hostfile
worker-0 slots=8
worker-1 slots=4
```

## Use instead
```yaml
zero:
  stage: 3
deepspeed:
  zero_optimization:
    zero_quantized_gradients: true
```
```hostfile
worker-0 slots=8
worker-1 slots=8
```
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.findings import Finding, Fix
from harness.gates.registry import Cite, Context, gate


@gate(
    "ZR025",
    "quantized-gradients-on-unequal-hosts",
    upstream="asserts",
    cites=(Cite("utils/groups.py", "num_gpus not equal to device per node, cannot initialize All-To-All"),),
    needs=("hosts",),
    when=lambda ctx: ctx.stage == 3 and ctx.ds("zero_optimization.zero_quantized_gradients") is True,
    unseen="needs several hosts",
)
def check(ctx: Context) -> Iterator[Finding]:
    """Each rank counts its own devices."""
    if ctx.slots is None or len(set(ctx.slots)) < 2:
        return
    key = ctx.spec_key("zero_optimization.zero_quantized_gradients")
    slots = ", ".join(map(str, ctx.slots[:8]))
    yield ctx.finding(
        f"{ctx.key(key)} needs the same number of ranks on every host, the hostfile has {slots}",
        key,
        label="groups do not fit",
        fix=Fix(
            "remove it, or give every host the same slots",
            {key: None},
            effect="gradients cross the nodes in full precision",
        ),
    )
