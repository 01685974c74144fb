"""An expert preset that does not exist, or belongs to another model.

## What it checks
`expert_parallel.preset_model` is one of `mixtral`, `qwen3_moe`, `qwen3_5_moe`, `deepseek_v2`, `deepseek_v3`,
`minimax_m3` (from 0.19.8), and where the model is known, the one for its type.

## Why it fails
An unknown name is refused: "Unknown preset_model 'mixtrall'. Available presets: ..." (run on 0.19.8). A preset for
another architecture names other modules, so that layers are not found or their weights not read (read in 0.19.8).
Without the key DeepSpeed takes the preset for the model's type by itself.

## Example
```yaml
deepspeed:
  expert_parallel:
    enabled: true
    autoep_size: 2
    preset_model: mixtrall
```

## Use instead
```yaml
deepspeed:
  expert_parallel:
    enabled: true
    autoep_size: 2
    preset_model: mixtral
```
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.findings import Finding, Fix
from harness.gates.experts.autoep import PRESETS, enabled
from harness.gates.registry import Cite, Context, gate
from harness.spec.suggestions import nearest_name


@gate(
    "EX006",
    "expert-preset-of-no-or-another-model",
    upstream="raises",
    cites=(Cite("module_inject/auto_ep_config.py", "Unknown preset_model '{config.preset_model}'"),),
    since="0.19.2",
    when=lambda ctx: enabled(ctx) and isinstance(ctx.ds("expert_parallel.preset_model"), str),
)
def check(ctx: Context) -> Iterator[Finding]:
    """DeepSpeed knows these models."""
    preset, key = ctx.ds("expert_parallel.preset_model"), "deepspeed.expert_parallel.preset_model"
    known = [p for p in PRESETS if p != "minimax_m3" or ctx.target.version >= (0, 19, 8)]
    if preset not in known:
        better = nearest_name(preset, known)
        what = f"`{preset}` is none of AutoEP's presets: {', '.join(f'`{p}`' for p in known)}"
        note = "DeepSpeed raises ValueError at initialisation"
    elif ctx.model is not None and ctx.model.experts and ctx.model.family not in PRESETS[preset]:
        better = next((p for p in known if ctx.model.family in PRESETS[p]), None)
        what = f"the preset `{preset}` names other modules than a `{ctx.model.family}` model has"
        note = "its layers are not found, or their weights not read"
    else:
        return
    yield ctx.finding(
        what,
        key,
        related=[("model.name_or_path", "the model")],
        notes=[note],
        fix=Fix(f"did you mean `{better}`?", {key: better}, effect="the layers that it names")
        if better
        else Fix(f"remove {ctx.key(key)}", {key: None}, effect="DeepSpeed goes by the model's type"),
    )
