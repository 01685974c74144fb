"""Attention heads that sequence parallelism cannot deal out.

## What it checks
The query heads are a multiple of the sequence degree, and of key-value heads and degree one divides the other.

## Why it fails
Ulysses gives each rank of a group whole heads of the whole sequence. "Attention head count 3 is not divisible by SP
size 2", "KV attention head count 3 is not divisible by SP size 2 or vice versa": a ValueError when the attention is
registered (run on 0.19.8; fewer key-value heads than ranks are copied, where they divide).

## Example
```yaml
model:
  name_or_path: Qwen/Qwen2.5-0.5B
parallel:
  sequence_parallel_size: 4
```

## Use instead
```yaml
model:
  name_or_path: Qwen/Qwen2.5-0.5B
parallel:
  sequence_parallel_size: 2
```
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.findings import Finding, Fix
from harness.gates.registry import Cite, Context, gate


@gate(
    "SQ004",
    "heads-not-divided-by-sequence-degree",
    upstream="raises",
    cites=(
        Cite("runtime/sequence_parallel/ulysses_sp.py", "is not divisible by SP size {self.world_size}"),
        Cite("runtime/sequence_parallel/ulysses_sp.py", "KV attention head count {self.global_kv_head_count}"),
    ),
    since="0.17.0",
    needs=("model facts",),
    when=lambda ctx: ctx.sequence_parallel_size > 1,
)
def check(ctx: Context) -> Iterator[Finding]:
    """Whole heads on every rank."""
    model, degree = ctx.model, ctx.sequence_parallel_size
    if model is None or _fits(model.heads, model.kv_heads, degree):
        return
    key = "parallel.sequence_parallel_size"
    better = next(d for d in range(min(degree - 1, model.heads), 0, -1) if _fits(model.heads, model.kv_heads, d))
    yield ctx.finding(
        f"{model.heads} query and {model.kv_heads} key-value heads cannot be dealt out to {degree} sequence ranks",
        key,
        related=[("model.name_or_path", "the model"), ("model.config", "the model")],
        notes=["DeepSpeed raises ValueError when the attention is registered"],
        fix=Fix(f"set {ctx.key(key)} to {better}", {key: better}, effect="other memory and speed"),
    )


def _fits(heads: int, kv_heads: int, degree: int) -> bool:
    return heads % degree == 0 and (kv_heads % degree == 0 or degree % kv_heads == 0)
