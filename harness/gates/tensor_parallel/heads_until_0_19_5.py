"""Attention heads that do not divide by the tensor degree, up to 0.19.5.

## What it checks
The model's query and key-value heads are multiples of `parallel.tensor_parallel_size`, on DeepSpeed 0.19.3 to 0.19.5.

## Why it fails
These releases cut the projections without regard to whole heads, and the first forward pass ends in "shape ... is
invalid for input of size" (run on 0.19.3). 0.18.2, 0.18.3 and everything from 0.19.7 on share the heads out unevenly.
Uneven sharding was repaired in DeepSpeed's history right after 0.19.5.

## Example
```yaml
model:
  name_or_path: Qwen/Qwen2.5-0.5B
parallel:
  tensor_parallel_size: 4
```

## Use instead
```yaml
model:
  name_or_path: Qwen/Qwen2.5-0.5B
parallel:
  tensor_parallel_size: 2
```
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.findings import Finding, Fix
from harness.gates.registry import Context, gate
from harness.gates.tensor_parallel.shapes import common_degree


@gate(
    "TP003",
    "heads-not-divided-by-autotp",
    upstream="crashes",
    since="0.19.3",
    until="0.19.5",
    needs=("model facts",),
    when=lambda ctx: ctx.tensor_parallel_size > 1,
    unseen="needs an older DeepSpeed",
)
def check(ctx: Context) -> Iterator[Finding]:
    """Whole heads on every rank."""
    model = ctx.model
    if model is None or (
        model.heads % ctx.tensor_parallel_size == 0 and model.kv_heads % ctx.tensor_parallel_size == 0
    ):
        return
    key, better = "parallel.tensor_parallel_size", common_degree(ctx.tensor_parallel_size, model.heads, model.kv_heads)
    yield ctx.finding(
        f"{model.heads} query and {model.kv_heads} key-value heads do not divide over "
        f"{ctx.tensor_parallel_size} tensor ranks",
        key,
        related=[("model.name_or_path", "the model")],
        notes=[f"DeepSpeed {ctx.target.text} fails in the first forward pass"],
        fix=Fix(f"set {ctx.key(key)} to {better}", {key: better}, effect="other memory and speed"),
    )
