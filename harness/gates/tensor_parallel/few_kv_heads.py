"""More tensor ranks than key-value heads.

## What it checks
The model has at least as many key-value heads as `parallel.tensor_parallel_size`.

## Why it fails
AutoTP deals out key-value heads with the query heads that use them, and does not copy heads. Ranks beyond the last
head hold no attention weights at all: they compute nothing there and wait. The losses are right (run on 0.19.8: one
key-value head over two ranks put all 64 query rows on the first).

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
from harness.gates.registry import Cite, Context, gate
from harness.gates.tensor_parallel.shapes import common_degree


@gate(
    "TP005",
    "fewer-key-value-heads-than-tensor-ranks",
    upstream="silent",
    cites=(Cite("runtime/engine.py", "ranks beyond the head count hold no attention shard"),),
    since="0.19.6",
    needs=("model facts",),
    when=lambda ctx: ctx.tensor_parallel_size > 1,
)
def check(ctx: Context) -> Iterator[Finding]:
    """Heads are not copied."""
    model, degree = ctx.model, ctx.tensor_parallel_size
    if model is None or model.kv_heads >= degree:
        return
    key, better = "parallel.tensor_parallel_size", common_degree(degree, model.kv_heads, model.intermediate)
    idle = degree - model.kv_heads
    yield ctx.finding(
        f"{model.kv_heads} key-value {'head' if model.kv_heads == 1 else 'heads'} over {degree} tensor ranks leave"
        f" {idle} without attention",
        key,
        label=f"{idle} of {degree} idle in every attention",
        related=[("model.name_or_path", "the model")],
        notes=["DeepSpeed only warns; the losses are right"],
        fix=Fix(f"set {ctx.key(key)} to {better}", {key: better}, effect="other memory and speed"),
        severity="warning",
    )
