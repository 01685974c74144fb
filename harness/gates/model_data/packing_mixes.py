"""Packing with a model whose attention runs across the documents of a row.

## What it checks
With `data.packing`, the model keeps documents apart by position ids that restart: dense attention with rotary or learnt
positions, by `sdpa` or `eager`; or `flash_attention_2` with one row a rank at once.

## Why it fails
transformers makes a block-diagonal mask from position ids that restart. Models with ALiBi (Bloom, MPT), with positions
counted from the mask (OPT), and recurrent ones (Mamba, Qwen3-Next) take no such mask: each document would see the ones
before it, and the loss would look better than it is. transformers gives flash attention the borders of documents only
in batches of one row (`_is_packed_sequence`; read there, not run here).

## Example
```yaml
model:
  config: {model_type: opt, vocab_size: 320, hidden_size: 64, num_hidden_layers: 2, num_attention_heads: 4}
data:
  packing: true
```

## Use instead
```yaml
model:
  config: {model_type: opt, vocab_size: 320, hidden_size: 64, num_hidden_layers: 2, num_attention_heads: 4}
data:
  packing: false
```
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.facts.packing_support import MIXES_PACKED_DOCUMENTS
from harness.findings import Finding, Fix
from harness.gates.registry import Context, gate


@gate("MD020", "packing-across-documents", upstream="wrong", needs=("a run spec",))
def check(ctx: Context) -> Iterator[Finding]:
    """Documents stay apart."""
    spec = ctx.run.spec
    if not spec.data.packing:
        return
    kind = (spec.model.config or {}).get("model_type") or (ctx.model.family if ctx.model else None)
    off = Fix("set `data.packing: false`", {"data.packing": False}, effect="more padding, fewer tokens a step")
    if kind in MIXES_PACKED_DOCUMENTS:
        yield ctx.finding(
            f"models of type `{kind}` attend across the documents of a packed row",
            "data.packing",
            notes=["the model is not told where a document ends, and predicts it from the one before"],
            fix=off,
        )
    rows = spec.train.per_device_train_batch_size
    if spec.model.attn_implementation in ("flash_attention_2", "flash_attention_3") and rows and rows > 1:
        yield ctx.finding(
            f"`{spec.model.attn_implementation}` keeps packed documents apart only in batches of one row, "
            f"`train.per_device_train_batch_size` is {rows}",
            "data.packing",
            related=[("train.per_device_train_batch_size", "rows at once")],
            fix=Fix("set `train.per_device_train_batch_size: 1` and a longer `data.max_length`"),
        )
