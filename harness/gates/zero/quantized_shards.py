"""Quantized weights whose shards are no multiple of 8.

## What it checks
`zero_quantized_weights: true` at stage 3 for a model with a parameter whose shard, its elements divided by the
data-parallel ranks, is no multiple of 8. Six or twelve ranks are enough for that.

## Why it fails
The quantizer works in groups of eight and asserts "Qantized weight requires the number of weights be a multiple of 8"
when the parameter is gathered for the first time (read in 0.19.8).

## Example
```yaml
model:
  config:
    model_type: llama
    hidden_size: 2048
    intermediate_size: 5504
    num_hidden_layers: 2
    num_attention_heads: 16
    vocab_size: 32000
zero:
  stage: 3
deepspeed:
  zero_optimization:
    zero_quantized_weights: true
launch:
  num_gpus: 6
```

## Use instead
```yaml
model:
  config:
    model_type: llama
    hidden_size: 2048
    intermediate_size: 5504
    num_hidden_layers: 2
    num_attention_heads: 16
    vocab_size: 32000
zero:
  stage: 3
deepspeed:
  zero_optimization:
    zero_quantized_weights: true
launch:
  num_gpus: 8
```
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.findings import Finding, Fix
from harness.gates.registry import Cite, Context, gate


@gate(
    "ZR020",
    "quantized-weights-of-odd-shards",
    upstream="asserts",
    cites=(
        Cite(
            "runtime/zero/partition_parameters.py", "Qantized weight requires the number of weights be a multiple of 8"
        ),
    ),
    needs=("world size", "model facts"),
    when=lambda ctx: ctx.stage == 3 and ctx.ds("zero_optimization.zero_quantized_weights") is True,
    unseen="needs CUDA",
)
def check(ctx: Context) -> Iterator[Finding]:
    """Eight elements make a group."""
    model, data = ctx.model, ctx.data_parallel_size
    if model is None or data is None or ctx.tensor_parallel_size > 1:
        return
    ranks = data * ctx.sequence_parallel_size
    odd = next((p for p in model.parameters() if -(-p.numel // ranks) % 8), None)
    if odd is None:
        return
    key = ctx.spec_key("zero_optimization.zero_quantized_weights")
    yield ctx.finding(
        f"{ctx.key(key)} needs shards of a multiple of 8, `{odd.name}` has {-(-odd.numel // ranks):,} on {ranks} ranks",
        key,
        label="cannot be quantized",
        fix=Fix(
            "remove it, or take a number of ranks that is a power of two",
            {key: None},
            effect="weights are gathered in full precision",
        ),
    )
