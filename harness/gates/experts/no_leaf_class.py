"""A mixture of experts under ZeRO-3 that DeepSpeed marks no leaf modules in.

## What it checks
A model with experts at ZeRO stage 3 and no `leaf_module`: on releases before 0.18.0, and for families that are not on
DeepSpeed's own list (Mixtral, Qwen2-MoE, Qwen3-MoE).

## Why it fails
Under ZeRO-3 each rank gathers the experts that its tokens need; ranks that need different ones wait for each other
for ever. A leaf module is gathered as a whole. `transformers` 5 keeps all experts of a layer in one weight, which
cannot deadlock; with older ones, or a model's own code, mark the block that holds the experts.

## Example
```yaml
model:
  config:
    model_type: deepseek_v2
    hidden_size: 64
    num_hidden_layers: 2
    num_attention_heads: 4
    n_routed_experts: 8
    vocab_size: 256
  tokenizer: bytes
zero:
  stage: 3
```

## Use instead
```yaml
model:
  config:
    model_type: deepseek_v2
    hidden_size: 64
    num_hidden_layers: 2
    num_attention_heads: 4
    n_routed_experts: 8
    vocab_size: 256
  tokenizer: bytes
zero:
  stage: 3
deepspeed:
  zero_optimization:
    leaf_module:
      classes: [DeepseekV2Moe]
```
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.findings import Finding, Fix
from harness.gates.experts.autoep import enabled
from harness.gates.experts.leaf_classes import BLOCKS
from harness.gates.registry import Cite, Context, gate

_KNOWN = ("mixtral", "qwen2_moe", "qwen3_moe")


@gate(
    "EX017",
    "experts-without-leaf-modules",
    upstream="hangs",
    cites=(Cite("runtime/zero/leaf_module_config.py", "DEFAULT_LEAF_MODULE_CLASSES: List[str] = ["),),
    needs=("model facts",),
    when=lambda ctx: ctx.stage == 3 and not ctx.has_key("zero_optimization.leaf_module") and not enabled(ctx),
    unseen="transformers 5 keeps all experts in one weight, which cannot deadlock",
)
def check(ctx: Context) -> Iterator[Finding]:
    """DeepSpeed marks three families by itself."""
    model, old = ctx.model, ctx.target.version < (0, 18, 0)
    if model is None or not model.experts or (model.family in _KNOWN and not old):
        return
    block, key = BLOCKS.get(model.family), "deepspeed.zero_optimization.leaf_module.classes"
    where = "model.name_or_path" if ctx.run.spec.model.name_or_path else "model.config"
    title = "upgrade to DeepSpeed 0.18.0 or newer, or use stage 2" if old else f"name the block in {ctx.key(key)}"
    yield ctx.finding(
        f"ZeRO stage 3 marks no leaf modules in a `{model.family}` model: {model.experts} experts may deadlock",
        where,
        related=[("zero.stage", "the stage")],
        notes=["`transformers` 5 keeps all experts of a layer in one weight, which cannot deadlock"],
        fix=Fix(title, {"zero.stage": 2}, effect="the same steps with more memory")
        if old or block is None
        else Fix(title, {key: [block]}, effect="gathers all experts of a layer at once"),
        severity="warning",
    )
