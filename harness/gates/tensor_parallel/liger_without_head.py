"""Liger's cross-entropy without a vocabulary-parallel head.

## What it checks
`tensor_parallel.vocab_parallel_ce_backend: liger` while the output head is not sharded over the vocabulary: with
`vocab_parallel_lm_head: false`, or where it is not set and the model does not tie its embeddings.

## Why it fails
"vocab_parallel_ce_backend='liger' requires a no-gather vocabulary-parallel LM head": a ValueError at initialisation,
after the model has been sharded (run on 0.19.8). Left to itself DeepSpeed shards the head only of models with tied
embeddings.

## Example
```yaml
parallel:
  tensor_parallel_size: 2
deepspeed:
  tensor_parallel:
    vocab_parallel_lm_head: false
    vocab_parallel_ce_backend: liger
```

## Use instead
```yaml
parallel:
  tensor_parallel_size: 2
deepspeed:
  tensor_parallel:
    vocab_parallel_lm_head: true
    vocab_parallel_ce_backend: liger
```
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.findings import Finding, Fix
from harness.gates.registry import Cite, Context, gate


@gate(
    "TP017",
    "liger-without-vocabulary-parallel-head",
    upstream="raises",
    cites=(Cite("runtime/engine.py", "requires a no-gather vocabulary-parallel LM head"),),
    since="0.19.8",
    when=lambda ctx: ctx.tensor_parallel_size > 1 and ctx.ds("tensor_parallel.vocab_parallel_ce_backend") == "liger",
)
def check(ctx: Context) -> Iterator[Finding]:
    """The loss is the head's."""
    head = ctx.ds("tensor_parallel.vocab_parallel_lm_head")
    untied = ctx.model is not None and not ctx.model.tied
    if head is True or (head is None and not untied):
        return
    key, switch = (
        f"deepspeed.tensor_parallel.{name}" for name in ("vocab_parallel_ce_backend", "vocab_parallel_lm_head")
    )
    yield ctx.finding(
        f"{ctx.key(key)} `liger` needs a vocabulary-parallel head, "
        + ("which is switched off" if head is False else "which a model without tied embeddings does not get"),
        key,
        related=[(switch, "switched off here"), ("model.name_or_path", "the model")],
        notes=["DeepSpeed raises ValueError at initialisation"],
        fix=Fix(f"set {ctx.key(switch)} to true", {switch: True}, effect="shards the head over the vocabulary"),
    )
