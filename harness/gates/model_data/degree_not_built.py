"""Pipeline stages of a model that cannot be cut into them.

## What it checks
On `harness launch` with `parallel.pipeline_parallel_size` above 1: the model is of a family whose forward is known to
be a plain stack of layers (GPT-2, Llama, Mistral, OLMo 2, Phi-3, Qwen2, Qwen3).

## Why it fails
A pipeline calls the layers of a `transformers` model one by one. Whatever else a family's forward does between them
(scaled embeddings, routers, capped logits) would be lost in silence, so that a family is taken once a test has
compared its pipeline with the whole model. `validate-config`, `plan` and `render` work with any family.

## Example
```yaml
model:
  config: {model_type: mixtral, hidden_size: 64, num_hidden_layers: 4, num_attention_heads: 4, vocab_size: 320}
  tokenizer: bytes
train:
  gradient_accumulation_steps: 8
zero:
  stage: 1
parallel:
  pipeline_parallel_size: 2
```

## Use instead
```yaml
model:
  config: {model_type: mistral, hidden_size: 64, num_hidden_layers: 4, num_attention_heads: 4, vocab_size: 320}
  tokenizer: bytes
train:
  gradient_accumulation_steps: 8
zero:
  stage: 1
parallel:
  pipeline_parallel_size: 2
```
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.facts.pipeline_support import PIPELINE_FAMILIES
from harness.findings import Finding, Fix
from harness.gates.registry import Context, gate


@gate(
    "MD004",
    "degree-that-this-version-does-not-train",
    upstream="silent",
    needs=("a run spec", "a launch", "model facts"),
)
def check(ctx: Context) -> Iterator[Finding]:
    """Only families that have been compared."""
    if ctx.pipeline_parallel_size < 2 or ctx.model is None or ctx.model.family in PIPELINE_FAMILIES:
        return
    key = "parallel.pipeline_parallel_size"
    known = ", ".join(f"`{family}`" for family in PIPELINE_FAMILIES)
    yield ctx.finding(
        f"`{ctx.model.family}` models cannot be cut into {ctx.pipeline_parallel_size} pipeline stages, only {known}",
        key,
        notes=["ZeRO stage 3 is the way to large models of other families"],
        fix=Fix(f"set {ctx.key(key)} to 1", {key: 1}, effect="more data-parallel ranks, other memory"),
    )
