"""A mesh of another size than the world.

## What it checks
`data_parallel_size` x the sequence degree is the number of ranks.

## Why it fails
A larger product is refused: "Mesh should not be bigger than default world size"; with a smaller one the ranks outside
the mesh fail with an IndexError while the others train on (both run on 0.19.8).

## Example
```yaml
parallel:
  sequence_parallel_size: 2
launch:
  num_gpus: 4
deepspeed:
  data_parallel_size: 4
```

## Use instead
```yaml
parallel:
  sequence_parallel_size: 2
launch:
  num_gpus: 4
deepspeed:
  data_parallel_size: 2
```
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.findings import Finding, Fix
from harness.gates.registry import Cite, Context, gate


@gate(
    "SQ003",
    "mesh-is-not-the-world",
    upstream="raises",
    cites=(Cite("__init__.py", "config to Initialize mesh device"),),
    since="0.15.0",
    needs=("world size",),
    when=lambda ctx: ctx.sequence_parallel_size > 1 and ctx.ds("data_parallel_size") is not None,
)
def check(ctx: Context) -> Iterator[Finding]:
    """data x sequence = world."""
    size, world = ctx.ds("data_parallel_size"), ctx.world_size or 0
    if not isinstance(size, int) or size * ctx.sequence_parallel_size == world or world % ctx.sequence_parallel_size:
        return
    key, degree = "deepspeed.data_parallel_size", "parallel.sequence_parallel_size"
    more, better = size * ctx.sequence_parallel_size > world, world // ctx.sequence_parallel_size
    yield ctx.finding(
        f"a mesh of {size} x {ctx.sequence_parallel_size} = {size * ctx.sequence_parallel_size} ranks "
        f"in a world of {world}",
        key,
        label=f"{better}?",
        related=[(degree, "times this"), ("launch.num_gpus", "the ranks are set here")],
        notes=[
            "torch refuses a mesh larger than the world"
            if more
            else "ranks outside the mesh fail with an IndexError, the others train on"
        ],
        fix=Fix(f"set {ctx.key(key)} to {better}", {key: better}, safe=True, effect="the mesh covers every rank"),
    )
