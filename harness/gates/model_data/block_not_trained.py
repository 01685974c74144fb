"""A DeepSpeed block that changes what is trained, and that this version's loop was not made for.

## What it checks
On `harness launch`: the `deepspeed` section has none of `tensor_parallel`, `expert_parallel`, `sequence_parallel_size`,
`pipeline` (but with `parallel.pipeline_parallel_size`), `torch_autocast`, `hybrid_engine`, `autotuning`,
`zero_optimization.zenflow`.

## Why it fails
Each of them changes the model, the data that a rank must see, or the step, and several do so without a word:
autotuning ends the training early with exit code 0, ZenFlow scrambles weights on 0.19.7 and 0.19.8, fp16 autocast
clips gradients that are still scaled. (Recorded from runs on these releases; not run by this project's tests.)
`validate-config`, `plan` and `render` work with them.

## Example
```yaml
deepspeed:
  torch_autocast:
    enabled: true
    dtype: bfloat16
```

## Use instead
```yaml
precision:
  bf16: true
zero:
  stage: 1
```
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.findings import Finding, Fix
from harness.gates.registry import Context, gate

_BLOCKS = (
    "tensor_parallel",
    "expert_parallel",
    "sequence_parallel_size",
    "pipeline",
    "torch_autocast",
    "hybrid_engine",
    "autotuning",
)


@gate("MD005", "block-that-this-version-does-not-train", upstream="silent", needs=("a run spec", "a launch"))
def check(ctx: Context) -> Iterator[Finding]:
    """The loop trains what it was tested with."""
    section = ctx.run.spec.deepspeed
    found = [
        name for name in _BLOCKS if name in section and not (name == "pipeline" and ctx.pipeline_parallel_size > 1)
    ]
    if ctx.has_key("zero_optimization.zenflow"):
        found.append("zero_optimization.zenflow")
    for name in found:
        key = f"deepspeed.{name}"
        yield ctx.finding(
            f"`{key}` changes what is trained, and this version's training loop was not made for it",
            key,
            notes=["`validate-config`, `plan` and `render` work with it"],
            fix=Fix(f"remove `{key}`", {key: None}, effect="trains without it"),
        )
