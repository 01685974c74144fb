"""hpZ groups that reach over hosts.

## What it checks
`zero_hpz_partition_size` at stage 3 that does not divide the slots of every host.

## Why it fails
hpZ keeps a second shard inside a small group, so that parameters are gathered there and not across the network. Groups
are cut from the world in order; those that reach over two hosts gather across the network in every backward pass and
cost the memory all the same (read in 0.19.8).

## Example
```yaml
zero:
  stage: 3
deepspeed:
  zero_optimization:
    zero_hpz_partition_size: 8
```
```hostfile
worker-0 slots=4
worker-1 slots=4
worker-2 slots=4
worker-3 slots=4
```

## Use instead
```yaml
zero:
  stage: 3
deepspeed:
  zero_optimization:
    zero_hpz_partition_size: 4
```
```hostfile
worker-0 slots=4
worker-1 slots=4
worker-2 slots=4
worker-3 slots=4
```
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.findings import Finding, Fix
from harness.gates.registry import Cite, Context, gate


@gate(
    "ZR026",
    "hpz-groups-across-hosts",
    upstream="silent",
    cites=(Cite("utils/groups.py", "for i in range(world_size // zero_param_parallel_size_):"),),
    needs=("hosts",),
    when=lambda ctx: ctx.stage == 3 and ctx.ds("zero_optimization.zero_hpz_partition_size", 1) > 1,
    unseen="needs several hosts",
)
def check(ctx: Context) -> Iterator[Finding]:
    """A group should stay inside a host."""
    size, world = ctx.ds("zero_optimization.zero_hpz_partition_size"), ctx.world_size
    if ctx.slots is None or world is None or size >= world or world % size:
        return  # ZR016 and ZR017
    if all(slots % size == 0 for slots in ctx.slots):
        return
    key, least = ctx.spec_key("zero_optimization.zero_hpz_partition_size"), min(ctx.slots)
    best = max(d for d in range(1, least + 1) if all(slots % d == 0 for slots in ctx.slots))
    yield ctx.finding(
        f"{ctx.key(key)} is {size}, so groups reach over hosts with {least} ranks",
        key,
        label="gathers across the network",
        fix=Fix(
            f"set {ctx.key(key)} to {best}, which stays inside a host" if best > 1 else "remove it",
            {key: best if best > 1 else None},
            effect="the same steps, with other traffic between the ranks",
        ),
        severity="warning",
    )
