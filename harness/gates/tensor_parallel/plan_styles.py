"""A model whose own tensor plan has parts that DeepSpeed does not know.

## What it checks
With tensor parallelism and neither `preset_model` nor `partition_config`, the family is one whose Hugging Face plan
DeepSpeed can convert. It cannot for phi3 (`rowwise_split_input`) and for mixtures of experts (`packed_colwise`,
`moe_tp_experts`).

## Why it fails
Since 0.19.6 DeepSpeed takes the `tp_plan` that `transformers` ships with the model, and rejects the whole plan when
one style in it is unknown: `ValueError: HuggingFace tp_plan contains unsupported partition style(s)` at
initialisation (run on 0.19.8 with transformers 5.23 for phi3, mixtral and qwen3_moe; read for the others). A plan of
one's own comes first, so a preset or a `partition_config` gets around it.

## Example
```yaml
model:
  name_or_path: mistralai/Mixtral-8x7B-v0.1
parallel:
  tensor_parallel_size: 2
```

## Use instead
```yaml
model:
  name_or_path: mistralai/Mixtral-8x7B-v0.1
parallel:
  tensor_parallel_size: 2
deepspeed:
  tensor_parallel:
    preset_model: mixtral
```
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.findings import Finding, Fix
from harness.gates.registry import Cite, Context, gate
from harness.gates.tensor_parallel.shapes import PRESETS

_UNKNOWN = {
    "phi3": "rowwise_split_input",
    "mixtral": "packed_colwise",
    "qwen2_moe": "packed_colwise",
    "qwen3_moe": "packed_colwise",
    "deepseek_v2": "packed_colwise",
    "deepseek_v3": "packed_colwise",
}
_WORKS = {"mixtral": "mixtral", "qwen2_moe": "qwen2"}


@gate(
    "TP007",
    "tensor-plan-with-unknown-styles",
    upstream="raises",
    cites=(Cite("module_inject/tp_plan_converter.py", "HuggingFace tp_plan contains unsupported partition style(s)"),),
    since="0.19.6",
    needs=("model facts",),
    when=lambda ctx: ctx.tensor_parallel_size > 1 and not ctx.ds("tensor_parallel.partition_config"),
)
def check(ctx: Context) -> Iterator[Finding]:
    """One unknown style rejects the plan."""
    family = ctx.model.family if ctx.model else ""
    if family not in _UNKNOWN or str(ctx.ds("tensor_parallel.preset_model", "")).lower() in PRESETS:
        return
    degree, preset = "parallel.tensor_parallel_size", "deepspeed.tensor_parallel.preset_model"
    works = _WORKS.get(family)
    yield ctx.finding(
        f"the tensor plan of `{family}` models has `{_UNKNOWN[family]}`, which DeepSpeed rejects",
        degree,
        label="refused for this model",
        related=[("model.name_or_path", "the model"), ("model.config", "the model")],
        notes=["DeepSpeed raises ValueError at initialisation", "a `partition_config` of your own is taken instead"],
        fix=Fix(f"set {ctx.key(preset)} to `{works}`", {preset: works}, effect="shards attention, not the experts")
        if works
        else Fix(f"set {ctx.key(degree)} to 1", {degree: 1}, effect="trains data parallel, with more memory a rank"),
    )
