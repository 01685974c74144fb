"""Leaf modules picked by their size.

## What it checks
`stage3_module_granularity_threshold` above 0 at stage 3.

## Why it fails
Every module whose parameters per submodule are fewer becomes a leaf that is fetched as a whole. Which ones depends on
the model's size, and not every module takes it: on a small Llama a threshold of 1 changed nothing; 3000 made the
attention a leaf, which Hugging Face models call with keyword arguments, and the backward pass failed with "output with
shape [1] doesn't match the broadcast shape"; 100000 made the whole model one and failed as well (run on 0.19.8). Leaves
by class name do what they say.

## Example
```yaml
zero:
  stage: 3
deepspeed:
  zero_optimization:
    stage3_module_granularity_threshold: 100000
```

## Use instead
```yaml
zero:
  stage: 3
deepspeed:
  zero_optimization:
    leaf_module:
      classes: [LlamaDecoderLayer]
```
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.findings import Finding, Fix
from harness.gates.registry import Cite, Context, gate


@gate(
    "ZR028",
    "leaf-modules-picked-by-size",
    upstream="crashes",
    cites=(Cite("runtime/zero/parameter_offload.py", "module.ds_model_granularity <= granularity_treshhold"),),
    since="0.16.0",
    when=lambda ctx: ctx.stage == 3,
)
def check(ctx: Context) -> Iterator[Finding]:
    """Sizes do not say what can be a leaf."""
    name = "stage3_module_granularity_threshold"
    if not ctx.has_key(f"zero_optimization.{name}"):
        name = "module_granularity_threshold"
    value = ctx.ds(f"zero_optimization.{name}", 0)
    if not isinstance(value, int) or value <= 0:
        return
    key = ctx.spec_key(f"zero_optimization.{name}")
    yield ctx.finding(
        f"{ctx.key(key)} is {value}, which may pick a module that cannot be a leaf",
        key,
        label="which modules it picks depends on the model's size",
        notes=["attention of Hugging Face models fails as a leaf in the backward pass"],
        fix=Fix(
            "remove it, or name the classes in `leaf_module`",
            {key: None},
            effect="modules are fetched one by one",
        ),
        severity="warning",
    )
