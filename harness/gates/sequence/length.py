"""Sequences that do not divide by the sequence degree.

## What it checks
`data.max_length` is a multiple of `parallel.sequence_parallel_size`.

## Why it fails
Each rank of a sequence group gets an equal part of every sequence: "batch's seqlen=1023 isn't divisible by
sp-size=2", a ValueError from DeepSpeed's data loader adapter at the first batch (read in 0.17.0 and 0.19.8). The
harness deals out the sequences itself and lengthens each by positions that count for nothing, so this is a warning: the
work on them is lost.

## Example
```yaml
data:
  max_length: 1023
parallel:
  sequence_parallel_size: 2
```

## Use instead
```yaml
data:
  max_length: 1022
parallel:
  sequence_parallel_size: 2
```
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.findings import Finding, Fix
from harness.gates.registry import Cite, Context, gate


@gate(
    "SQ009",
    "length-not-divided-by-sequence-degree",
    upstream="raises",
    cites=(Cite("runtime/sequence_parallel/ulysses_sp.py", "isn't divisible by sp-size={self.sp_world_size}"),),
    since="0.17.0",
    needs=("a run spec",),
    when=lambda ctx: ctx.sequence_parallel_size > 1,
    unseen="the harness does not use the adapter",
)
def check(ctx: Context) -> Iterator[Finding]:
    """Equal parts."""
    length, key = ctx.run.spec.data.max_length, "data.max_length"
    if length % ctx.sequence_parallel_size == 0:
        return
    better = max(ctx.sequence_parallel_size, length // ctx.sequence_parallel_size * ctx.sequence_parallel_size)
    yield ctx.finding(
        f"sequences of {length} tokens do not divide over {ctx.sequence_parallel_size} sequence ranks",
        key,
        related=[("parallel.sequence_parallel_size", "the sequence degree")],
        notes=[
            f"each is lengthened to {-(-length // ctx.sequence_parallel_size) * ctx.sequence_parallel_size} positions",
            "DeepSpeed's own data loader adapter would raise ValueError at the first batch",
        ],
        fix=Fix(f"set {ctx.key(key)} to {better}", {key: better}, effect="changes what is trained"),
        severity="warning",
    )
