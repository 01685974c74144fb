"""A ZeRO stage or an offload device that TrainingArguments cannot fill in.

## What it checks
"auto" for `zero_optimization.stage`, an offload device or an NVMe path, in a JSON for the Hugging Face Trainer (an
error) or for accelerate (a warning).

## Why it fails
The Trainer has no argument for them. What fills them in is accelerate's DeepSpeedPlugin with its defaults, in silence:
stage 2, no offload, whatever was meant (run with transformers 5.23 and accelerate 1.15). A script that makes the plugin
itself, or `accelerate launch --zero_stage`, can say more.

## Example
```json
{
  "train_batch_size": "auto",
  "train_micro_batch_size_per_gpu": "auto",
  "gradient_clipping": "auto",
  "optimizer": {"type": "AdamW", "params": {"lr": "auto", "betas": "auto"}},
  "zero_optimization": {"stage": "auto"}
}
```

## Use instead
```json
{
  "train_batch_size": "auto",
  "train_micro_batch_size_per_gpu": "auto",
  "gradient_clipping": "auto",
  "optimizer": {"type": "AdamW", "params": {"lr": "auto", "betas": "auto"}},
  "zero_optimization": {"stage": 2}
}
```
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.findings import Finding, Fix
from harness.gates.registry import Context, gate

_BECOMES = {"stage": 2, "device": "none", "nvme_path": "none"}


@gate(
    "HF005",
    "zero-left-open",
    upstream="silent",
    when=lambda ctx: ctx.consumer in ("hf", "accelerate"),
    unseen="needs the Hugging Face Trainer or accelerate",
)
def check(ctx: Context) -> Iterator[Finding]:
    """The sharding is not for TrainingArguments to say."""
    from harness.spec.auto_values import FILLED_BY_PLUGIN, find_auto_values
    from harness.spec.parse.source import join_key

    hf = ctx.consumer == "hf"
    for path in find_auto_values(ctx.source.data):
        if path not in FILLED_BY_PLUGIN:
            continue
        key, becomes = ctx.spec_key(join_key(path)), _BECOMES[str(path[-1])]
        effect = "" if path[-1] == "stage" else "nothing is offloaded, as now"
        yield ctx.finding(
            f'{ctx.key(key)} is "auto", which becomes {becomes}'
            + ("" if hf else " unless the DeepSpeedPlugin or `accelerate launch` says otherwise"),
            key,
            notes=["the Trainer has no argument for it, so accelerate's default is taken in silence"] if hf else [],
            fix=Fix(f"write `{becomes}`, or what is meant", {key: becomes}, safe=path[-1] == "stage", effect=effect),
            severity="error" if hf else "warning",
        )
