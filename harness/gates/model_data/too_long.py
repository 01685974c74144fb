"""Sequences longer than the model's positions.

## What it checks
`data.max_length` against the rows of a learned table of positions (an error), and against `max_position_embeddings`
of a `model.config` that is written out (a warning).

## Why it fails
A model with learned positions, such as GPT-2 or OPT, has one row for each: beyond the table the look-up fails, on a
GPU as a device-side assertion. Rotary positions can be computed beyond what the model was made for, but mean little
there.

## Example
```yaml
model:
  config:
    model_type: llama
    vocab_size: 64
    hidden_size: 32
    intermediate_size: 64
    num_hidden_layers: 1
    num_attention_heads: 4
    max_position_embeddings: 512
data:
  max_length: 1024
```

## Use instead
```yaml
model:
  config:
    model_type: llama
    vocab_size: 64
    hidden_size: 32
    intermediate_size: 64
    num_hidden_layers: 1
    num_attention_heads: 4
    max_position_embeddings: 1024
data:
  max_length: 1024
```
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.findings import Finding, Fix
from harness.gates.registry import Context, gate

_TABLES = ("wpe.weight", "embed_positions.weight", "position_embeddings.weight")


@gate("MD014", "sequences-beyond-the-positions", upstream="crashes", needs=("a run spec", "model facts"))
def check(ctx: Context) -> Iterator[Finding]:
    """One row a position."""
    length, facts = ctx.run.spec.data.max_length, ctx.model
    tables = [p.shape[0] for p in facts.before if p.name.endswith(_TABLES)] if facts else []
    offset = 2 if facts is not None and facts.family == "opt" else 0
    learned = tables[0] - offset if tables else None
    config = ctx.run.spec.model.config or {}
    known = learned or config.get("max_position_embeddings")
    if not isinstance(known, int) or length <= known:
        return
    has = "has" if learned else "was made for"
    yield ctx.finding(
        f"{ctx.key('data.max_length')} is {length:,}, the model {has} {known:,} positions",
        "data.max_length",
        severity="error" if learned else "warning",
        related=[("model.config.max_position_embeddings", "the model's positions")],
        fix=Fix(f"set `data.max_length` to {known}", {"data.max_length": known}, effect="shorter sequences"),
    )
