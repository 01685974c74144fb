"""A tensor-parallel preset that does not exist.

## What it checks
`tensor_parallel.preset_model` is one of `llama`, `bloom`, `chatglm`, `mixtral`, `deepseek_v2`, `qwen2`, `phi3`.

## Why it fails
DeepSpeed looks the name up, finds nothing and goes on without a preset, in silence: the model is sharded by the plan
of `transformers` or by guesses from the names of its layers (run on 0.19.8 with `lama`).

## Example
```yaml
parallel:
  tensor_parallel_size: 2
deepspeed:
  tensor_parallel:
    preset_model: lama
```

## Use instead
```yaml
parallel:
  tensor_parallel_size: 2
deepspeed:
  tensor_parallel:
    preset_model: llama
```
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.findings import Finding, Fix
from harness.gates.registry import Cite, Context, gate
from harness.gates.tensor_parallel.shapes import PRESETS
from harness.spec.suggestions import nearest_name


@gate(
    "TP008",
    "unknown-tensor-preset",
    upstream="silent",
    cites=(Cite("module_inject/autotp_config.py", "preset_fn = presets.get(model_type.lower())"),),
    since="0.18.6",
    when=lambda ctx: ctx.tensor_parallel_size > 1,
)
def check(ctx: Context) -> Iterator[Finding]:
    """Seven names."""
    preset = ctx.ds("tensor_parallel.preset_model")
    if not isinstance(preset, str) or not preset or preset.lower() in PRESETS:
        return
    key, better = "deepspeed.tensor_parallel.preset_model", nearest_name(preset.lower(), PRESETS)
    yield ctx.finding(
        f"`{preset}` is none of AutoTP's presets: {', '.join(f'`{name}`' for name in PRESETS)}",
        key,
        related=[("parallel.tensor_parallel_size", "tensor parallelism is asked for here")],
        notes=["DeepSpeed goes on without a preset, in silence"],
        fix=Fix(f"did you mean `{better}`?", {key: better}, effect="shards what the preset names")
        if better
        else Fix(f"remove {ctx.key(key)}", {key: None}, safe=True, effect="as DeepSpeed does anyway"),
    )
