"""A model that AutoTP has no plan for.

## What it checks
With tensor parallelism and no `tensor_parallel.partition_config`, the model is not one of those that DeepSpeed's list
of unsupported models names: GPT-2 among the causal language models.

## Why it fails
"AutoTP not supported for model. Please provide policy.": an assertion at initialisation, after every rank has built
the model (run on 0.19.8). GPT-2 keeps its weights input first, which AutoTP would cut along the wrong side.

## Example
```yaml
model:
  name_or_path: openai-community/gpt2
parallel:
  tensor_parallel_size: 2
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
from harness.gates.tensor_parallel.shapes import PRESETS

_REFUSED = frozenset("deberta flaubert fsmt gpt2 led longformer xlm xlnet".split())


@gate(
    "TP006",
    "model-without-tensor-plan",
    upstream="asserts",
    cites=(Cite("module_inject/auto_tp.py", "AutoTP not supported for model. Please provide policy."),),
    since="0.16.4",
    needs=("model facts",),
    when=lambda ctx: ctx.tensor_parallel_size > 1 and not ctx.ds("tensor_parallel.partition_config"),
)
def check(ctx: Context) -> Iterator[Finding]:
    """DeepSpeed's own list, by the name of the model's class."""
    preset = str(ctx.ds("tensor_parallel.preset_model", "")).lower()
    if ctx.model is None or ctx.model.family not in _REFUSED or preset in PRESETS:
        return
    key = "parallel.tensor_parallel_size"
    yield ctx.finding(
        f"AutoTP does not support `{ctx.model.family}` models, {ctx.key(key)} is {ctx.tensor_parallel_size}",
        key,
        label="refused for this model",
        related=[("model.name_or_path", "the model"), ("model.config", "the model")],
        notes=["DeepSpeed asserts this at initialisation, after every rank has built the model"],
        fix=Fix(f"set {ctx.key(key)} to 1", {key: 1}, effect="trains data parallel, with more memory a rank"),
    )
