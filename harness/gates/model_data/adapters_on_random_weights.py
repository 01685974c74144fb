"""Adapters beside weights that are random and stay so.

## What it checks
`model.lora` comes with pretrained weights: `model.name_or_path`, without `model.random_init`.

## Why it fails
The weights beside the adapters are frozen as they are. A model of frozen random weights learns next to nothing.

## Example
```yaml
model:
  config: {model_type: llama, vocab_size: 1000}
  tokenizer: bytes
  lora: {r: 8}
```

## Use instead
```yaml
model:
  name_or_path: Qwen/Qwen2.5-0.5B
  lora: {r: 8}
```
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.findings import Finding, Fix
from harness.gates.registry import Context, gate


@gate("MD032", "adapters-on-random-weights", upstream="silent", needs=("a run spec",))
def check(ctx: Context) -> Iterator[Finding]:
    """Something to adapt."""
    model = ctx.run.spec.model
    if model.lora is not None and (model.random_init or (model.name_or_path is None and model.config is not None)):
        yield ctx.finding(
            "`model.lora` freezes weights that start random, so that they never learn anything",
            "model.lora",
            severity="warning",
            label="adapts random weights",
            fix=Fix(
                "remove `model.lora`, or start from pretrained weights",
                {"model.lora": None},
                effect="trains all weights",
            ),
        )
