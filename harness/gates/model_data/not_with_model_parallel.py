"""What is done to a whole model, asked of one that is cut.

## What it checks
On `harness launch`: `model.lora` and `train.offload_activations` are not given with `parallel.tensor_parallel_size`
above 1, and `plugins.file` with none of the degrees of `parallel`.

## Why it fails
Adapters under AutoTP were not run by this project: DeepSpeed cuts layers by their names, which adapters change. A model
of your own is not cut into stages or shards, and your own metrics would see a part of the logits.

## Example
```yaml
parallel:
  tensor_parallel_size: 2
model:
  lora: {r: 8}
```

## Use instead
```yaml
parallel:
  tensor_parallel_size: 1
model:
  lora: {r: 8}
```
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.findings import Finding, Fix
from harness.gates.registry import Context, gate

_KEYS = {
    "tensor_parallel_size": ("model.lora", "train.offload_activations", "plugins.file"),
    "pipeline_parallel_size": ("plugins.file",),
    "sequence_parallel_size": ("plugins.file",),
}


@gate("MD033", "not-with-model-parallelism", upstream="silent", needs=("a run spec", "a launch"))
def check(ctx: Context) -> Iterator[Finding]:
    """Whole models only."""
    parallel = ctx.run.spec.parallel
    for degree, keys in _KEYS.items():
        if getattr(parallel, degree) == 1:
            continue
        for key in keys:
            section, name = key.split(".")
            if getattr(getattr(ctx.run.spec, section), name):
                yield ctx.finding(
                    f"`{key}` is not built for `parallel.{degree}` above 1",
                    key,
                    related=[(f"parallel.{degree}", "cuts the model")],
                    fix=Fix(f"set `parallel.{degree}: 1`", {f"parallel.{degree}": 1}, effect="uses ranks for data"),
                )
        return
