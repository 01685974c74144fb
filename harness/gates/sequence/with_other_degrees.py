"""Sequence parallelism together with tensor or pipeline parallelism.

## What it checks
A sequence degree above 1 with a tensor degree or pipeline stages above 1.

## Why it fails
The degrees do not multiply, they overlap: four ranks with a sequence and a tensor degree of 2 are told to be two data
ranks, two sequence ranks and two model ranks at once, and train with the losses of plain data parallelism over two
(run on 0.19.8, accepted without a word). A PipelineModule ignores the sequence keys. With the wrapper of
`UlyssesSPAttentionHF` and AutoTP it fails with an IndexError instead (run).

## Example
```yaml
parallel:
  tensor_parallel_size: 2
  sequence_parallel_size: 2
```

## Use instead
```yaml
parallel:
  sequence_parallel_size: 4
```
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.findings import Finding, Fix
from harness.gates.registry import Cite, Context, gate


@gate(
    "SQ006",
    "sequence-with-tensor-or-pipeline",
    upstream="silent",
    cites=(Cite("utils/groups.py", "def _get_sequence_parallel_world_size():"),),
    since="0.17.0",
    when=lambda ctx: (
        ctx.sequence_parallel_size > 1 and (ctx.tensor_parallel_size > 1 or ctx.pipeline_parallel_size > 1)
    ),
)
def check(ctx: Context) -> Iterator[Finding]:
    """Groups that overlap instead of multiplying."""
    key = "parallel.sequence_parallel_size"
    name, size = (
        ("tensor", ctx.tensor_parallel_size)
        if ctx.tensor_parallel_size > 1
        else ("pipeline", ctx.pipeline_parallel_size)
    )
    other = f"parallel.{name}_parallel_size"
    yield ctx.finding(
        f"a sequence degree of {ctx.sequence_parallel_size} and a {name} degree of {size} "
        f"overlap instead of multiplying",
        key,
        related=[(other, f"the {name} degree")],
        notes=["DeepSpeed accepts it in silence and puts the same ranks into both groups"],
        fix=Fix(f"set {ctx.key(key)} to 1", {key: 1}, effect="whole sequences on every rank"),
    )
