"""hpZ groups that do not divide the ranks.

## What it checks
`zero_hpz_partition_size` at stage 3 that does not divide the number of ranks.

## Why it fails
DeepSpeed cuts all ranks into groups of that size and asserts that it comes out even, when `zero.Init` or the engine is
built (run on 0.19.8: "4 is not divisible by 3").

## Example
```yaml
zero:
  stage: 3
deepspeed:
  zero_optimization:
    zero_hpz_partition_size: 3
launch:
  num_gpus: 4
```

## Use instead
```yaml
zero:
  stage: 3
deepspeed:
  zero_optimization:
    zero_hpz_partition_size: 2
launch:
  num_gpus: 4
```
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.findings import Finding, Fix
from harness.gates.registry import Cite, Context, gate


@gate(
    "ZR016",
    "hpz-does-not-divide-the-ranks",
    upstream="asserts",
    cites=(Cite("utils/groups.py", "_ensure_divisibility(world_size, zero_param_parallel_size_)"),),
    needs=("world size",),
    when=lambda ctx: ctx.stage == 3 and ctx.ds("zero_optimization.zero_hpz_partition_size", 1) > 1,
)
def check(ctx: Context) -> Iterator[Finding]:
    """The ranks are cut into equal groups."""
    size, world = ctx.ds("zero_optimization.zero_hpz_partition_size"), ctx.world_size
    if world is None or size > world or world % size == 0:
        return
    key = ctx.spec_key("zero_optimization.zero_hpz_partition_size")
    best = max(d for d in range(1, size) if world % d == 0)
    yield ctx.finding(
        f"{ctx.key(key)} is {size}, which does not divide {world} ranks",
        key,
        label=f"{world} / {size} is not whole",
        notes=["the ranks of one node are what it is made for"],
        fix=Fix(
            f"set {ctx.key(key)} to {best}" if best > 1 else "remove it",
            {key: best if best > 1 else None},
            safe=True,
            effect="the same steps, with other traffic between the ranks",
        ),
    )
