"""Shards of different size on the ranks of a tensor group.

## What it checks
Key-value heads and the width of the MLP are multiples of `parallel.tensor_parallel_size` (for fewer key-value heads
than ranks see `fewer-key-value-heads-than-tensor-ranks`).

## Why it fails
Nothing fails: DeepSpeed deals out whole key-value heads with the query heads that use them, and rows of the MLP, as
evenly as it can, and the losses are those of one rank (run on 0.19.8 with 3 heads over 2 ranks and a width of 129).
But every layer waits for the rank with the largest share, and a checkpoint with uneven shards fits this degree only.

## Example
```yaml
model:
  name_or_path: meta-llama/Llama-3.1-8B
parallel:
  tensor_parallel_size: 3
```

## Use instead
```yaml
model:
  name_or_path: meta-llama/Llama-3.1-8B
parallel:
  tensor_parallel_size: 2
```
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.findings import Finding, Fix
from harness.gates.registry import Cite, Context, gate
from harness.gates.tensor_parallel.shapes import common_degree


@gate(
    "TP004",
    "uneven-tensor-shards",
    upstream="silent",
    cites=(Cite("module_inject/tp_shard.py", "def get_shard_size_list("),),
    since="0.19.6",
    needs=("model facts",),
    when=lambda ctx: ctx.tensor_parallel_size > 1,
)
def check(ctx: Context) -> Iterator[Finding]:
    """The largest share sets the pace."""
    model, degree = ctx.model, ctx.tensor_parallel_size
    if model is None or model.kv_heads < degree:
        return
    sizes = {"key-value heads": model.kv_heads, "rows of the MLP": model.intermediate}
    uneven = {what: size for what, size in sizes.items() if size % degree}
    if not uneven:
        return
    key, better = "parallel.tensor_parallel_size", common_degree(degree, *sizes.values())
    what, size = next(iter(uneven.items()))
    yield ctx.finding(
        f"{size} {what} do not divide over {degree} tensor ranks, {size // degree + 1} is the largest share",
        key,
        related=[("model.name_or_path", "the model")],
        notes=["the losses are right; every layer waits for the rank with the largest share"],
        fix=Fix(f"set {ctx.key(key)} to {better}", {key: better}, effect="other memory and speed"),
        severity="warning",
    )
