"""ZeRO-3 leaf modules that leave the experts out.

## What it checks
A mixture of experts at ZeRO stage 3 whose `leaf_module.classes` names none of the model's expert blocks; or an empty
`classes`.

## Why it fails
Under ZeRO-3 each rank gathers the experts that its tokens need. Ranks that need different ones wait for each other
for ever, unless the whole block is marked as a leaf, which gathers all of it at once. DeepSpeed marks Mixtral's and
Qwen's blocks by itself, but `classes` replaces that list, and a name that matches nothing is met with a warning alone
(run on 0.19.8). `transformers` 5 keeps all experts of a layer in one weight, which cannot deadlock; older ones do
not.

## Example
```yaml
model:
  name_or_path: mistralai/Mixtral-8x7B-v0.1
zero:
  stage: 3
deepspeed:
  zero_optimization:
    leaf_module:
      classes: [MixtralMoeBlock]
```

## Use instead
```yaml
model:
  name_or_path: mistralai/Mixtral-8x7B-v0.1
zero:
  stage: 3
deepspeed:
  zero_optimization:
    leaf_module:
      classes: [MixtralSparseMoeBlock]
```
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from harness.findings import Finding, Fix
from harness.gates.registry import Cite, Context, gate

BLOCKS = {
    "mixtral": "MixtralSparseMoeBlock",
    "qwen2_moe": "Qwen2MoeSparseMoeBlock",
    "qwen3_moe": "Qwen3MoeSparseMoeBlock",
    "gpt_oss": "GptOssMLP",
    "deepseek_v2": "DeepseekV2Moe",
    "deepseek_v3": "DeepseekV3MoE",
}
_KEY = "deepspeed.zero_optimization.leaf_module"


@gate(
    "EX016",
    "leaf-modules-without-the-experts",
    upstream="hangs",
    cites=(Cite("runtime/zero/leaf_module_config.py", "DEFAULT_LEAF_MODULE_CLASSES: List[str] = ["),),
    since="0.18.0",
    when=lambda ctx: ctx.stage == 3 and ctx.has_key("zero_optimization.leaf_module.classes"),
    unseen="transformers 5 keeps all experts in one weight, which cannot deadlock",
)
def check(ctx: Context) -> Iterator[Finding]:
    """`classes` replaces DeepSpeed's own list."""
    classes: Any = ctx.ds("zero_optimization.leaf_module.classes")
    if any(ctx.ds(f"zero_optimization.leaf_module.{name}") for name in ("names", "name_suffixes")):
        return
    named = [classes] if isinstance(classes, str) else classes if isinstance(classes, list) else None
    if named is None:
        return
    block = BLOCKS.get(ctx.model.family) if ctx.model and ctx.model.experts else None
    if block is None and named:
        return
    if block is not None and any(str(name).rpartition(".")[2] == block for name in named):
        return
    key = f"{_KEY}.classes"
    yield ctx.finding(
        f"`leaf_module.classes` names no `{block}`, the block with this model's experts"
        if block and named
        else "an empty `leaf_module.classes` switches off DeepSpeed's own list of expert blocks",
        key,
        related=[("model.name_or_path", "the model"), ("zero.stage", "the stage")],
        notes=["ranks whose tokens need different experts would wait for each other for ever"],
        fix=Fix(f"set {ctx.key(key)} to `{block}`", {key: [block]}, effect="gathers all experts of a layer at once")
        if block
        else Fix(f"remove {ctx.key(key)}", {key: None}, effect="DeepSpeed's own list counts"),
        severity="warning",
    )
