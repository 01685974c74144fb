"""More pipeline stages than there are layers to put on them.

## What it checks
A model of N layers, with its embedding and its head, fills at most N + 2 stages.

## Why it fails
A stage without parameters has nothing to optimise: "optimizer got an empty parameter list" on its ranks, while the
others wait for them (run on 0.19.8).

## Example
```yaml
model:
  config: {model_type: llama, hidden_size: 64, num_hidden_layers: 1, num_attention_heads: 4, vocab_size: 256}
  tokenizer: bytes
train:
  gradient_accumulation_steps: 16
zero:
  stage: 1
parallel:
  pipeline_parallel_size: 4
```

## Use instead
```yaml
model:
  config: {model_type: llama, hidden_size: 64, num_hidden_layers: 4, num_attention_heads: 4, vocab_size: 256}
  tokenizer: bytes
train:
  gradient_accumulation_steps: 16
zero:
  stage: 1
parallel:
  pipeline_parallel_size: 4
```
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.findings import Finding, Fix
from harness.gates.registry import Context, gate


@gate(
    "PP003",
    "pipeline-stage-without-parameters",
    upstream="crashes",
    needs=("model facts",),
    when=lambda ctx: ctx.pipeline_parallel_size > 1,
    unseen="the harness refuses it itself (PP103) before DeepSpeed can fail",
)
def check(ctx: Context) -> Iterator[Finding]:
    """Every stage needs something to train."""
    layers = ctx.model.num_layers if ctx.model else ctx.pipeline_parallel_size
    if ctx.pipeline_parallel_size <= layers + 2:
        return
    key = "parallel.pipeline_parallel_size"
    better = _divisor(layers, ctx.pipeline_parallel_size)
    yield ctx.finding(
        f"{ctx.pipeline_parallel_size} pipeline stages for {layers} {'layer' if layers == 1 else 'layers'}, "
        f"embedding and head",
        key,
        label="some stage stays empty",
        related=[("model.name_or_path", "the model"), ("model.config.num_hidden_layers", "the layers")],
        notes=["torch refuses an optimizer without parameters on that stage, the others wait"],
        fix=Fix(f"set {ctx.key(key)} to {better}", {key: better}, effect="other memory and speed"),
    )


def _divisor(layers: int, most: int) -> int:
    return next(d for d in range(min(layers, most), 0, -1) if layers % d == 0)
