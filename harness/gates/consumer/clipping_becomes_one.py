"""`gradient_clipping: "auto"` under accelerate.

## What it checks
A JSON for accelerate in which `gradient_clipping` is "auto".

## Why it fails
Unless the DeepSpeedPlugin or the environment says something else, accelerate fills in 1.0 (run with accelerate 1.15).
The limit that a script gives to `accelerator.clip_grad_norm_` has no effect under DeepSpeed.

## Example
```json
{
  "train_batch_size": "auto",
  "train_micro_batch_size_per_gpu": "auto",
  "gradient_clipping": "auto",
  "zero_optimization": {"stage": 2, "stage3_gather_16bit_weights_on_model_save": "auto"}
}
```

## Use instead
```json
{
  "train_batch_size": "auto",
  "train_micro_batch_size_per_gpu": "auto",
  "gradient_clipping": 1.0,
  "zero_optimization": {"stage": 2, "stage3_gather_16bit_weights_on_model_save": "auto"}
}
```
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.findings import Finding, Fix
from harness.gates.registry import Context, gate


@gate(
    "HF010",
    "clipping-that-becomes-one",
    upstream="silent",
    when=lambda ctx: ctx.consumer == "accelerate",
    unseen="needs accelerate",
)
def check(ctx: Context) -> Iterator[Finding]:
    """The default of accelerate, not the script's limit."""
    if not ctx.is_auto("gradient_clipping"):
        return
    yield ctx.finding(
        f'{ctx.key("train.max_grad_norm")} is "auto", which becomes 1.0 unless accelerate is told otherwise',
        "train.max_grad_norm",
        notes=["the limit that a script gives to `accelerator.clip_grad_norm_` is not used under DeepSpeed"],
        fix=Fix("write the limit", {"train.max_grad_norm": 1.0}, safe=True),
        severity="warning",
    )
