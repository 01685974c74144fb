"""hpZ groups as large as the whole run.

## What it checks
`zero_hpz_partition_size` at stage 3 that is at least the number of ranks.

## Why it fails
DeepSpeed takes the smaller of both: one group with all ranks. Each rank then keeps a second shard of the 16-bit
parameters that is the same as its first, and gathers across the same ranks as before: memory for nothing (run on 0.19.8
with 8 on two ranks).

## Example
```yaml
zero:
  stage: 3
deepspeed:
  zero_optimization:
    zero_hpz_partition_size: 8
launch:
  num_gpus: 4
```

## Use instead
```yaml
zero:
  stage: 3
launch:
  num_gpus: 4
```
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.findings import Finding, Fix
from harness.gates.registry import Cite, Context, gate


@gate(
    "ZR017",
    "hpz-larger-than-the-world",
    upstream="silent",
    cites=(Cite("utils/groups.py", "zero_param_parallel_size_ = min(group_size, world_size)"),),
    needs=("world size",),
    when=lambda ctx: ctx.stage == 3 and ctx.ds("zero_optimization.zero_hpz_partition_size", 1) > 1,
)
def check(ctx: Context) -> Iterator[Finding]:
    """One group of all ranks is what there was before."""
    size, world = ctx.ds("zero_optimization.zero_hpz_partition_size"), ctx.world_size
    if world is None or size < world:
        return
    key = ctx.spec_key("zero_optimization.zero_hpz_partition_size")
    yield ctx.finding(
        f"{ctx.key(key)} is {size} on {world} ranks: a second shard of all parameters, and nothing won",
        key,
        label="one group of all ranks",
        notes=["it is meant for the ranks of one node among several"],
        fix=Fix("remove it", {key: None}, effect="the same steps with less memory"),
        severity="warning",
    )
