"""Eager attention under sequence parallelism.

## What it checks
`model.attn_implementation: eager` with a sequence degree above 1.

## Why it fails
Eager attention needs a mask of the whole sequence squared, which sequence parallelism throws away: "eager
attn_implementation isn't currently supported by Ulysses sequence parallelism", a ValueError (run on 0.19.8; up to
0.18.9 only `sdpa` and `flash_attention_2` are taken).

## Example
```yaml
model:
  attn_implementation: eager
parallel:
  sequence_parallel_size: 2
```

## Use instead
```yaml
model:
  attn_implementation: sdpa
parallel:
  sequence_parallel_size: 2
```
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.findings import Finding, Fix
from harness.gates.registry import Cite, Context, gate


@gate(
    "SQ005",
    "eager-attention-with-sequence-parallelism",
    upstream="raises",
    cites=(Cite("runtime/sequence_parallel/ulysses_sp.py", "isn't currently supported by Ulysses"),),
    since="0.17.0",
    when=lambda ctx: ctx.sequence_parallel_size > 1,
)
def check(ctx: Context) -> Iterator[Finding]:
    """Masks are thrown away."""
    if ctx.run.spec.model.attn_implementation != "eager":
        return
    key = "model.attn_implementation"
    yield ctx.finding(
        f"eager attention does not run over {ctx.sequence_parallel_size} sequence ranks",
        key,
        related=[("parallel.sequence_parallel_size", "sequence parallelism is asked for here")],
        notes=["DeepSpeed raises ValueError when the attention is registered"],
        fix=Fix(f"set {ctx.key(key)} to `sdpa`", {key: "sdpa"}, safe=True, effect="the same attention, other kernel"),
    )
