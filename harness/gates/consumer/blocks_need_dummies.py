"""An optimizer or scheduler in a file for accelerate.

## What it checks
A JSON for accelerate with an `optimizer` or `scheduler` block.

## Why it fails
accelerate wants the script to pass `DummyOptim` and `DummyScheduler` then, and refuses real ones: "You cannot specify
an optimizer in the config file and in the code at the same time" (read in accelerate 1.15, `accelerator.py`). Without
the blocks the script's own objects are used.

## Example
```json
{
  "train_batch_size": "auto",
  "train_micro_batch_size_per_gpu": "auto",
  "gradient_clipping": 1.0,
  "optimizer": {"type": "AdamW", "params": {"lr": "auto", "weight_decay": "auto"}},
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

_DUMMIES = {"optimizer": "DummyOptim", "scheduler": "DummyScheduler"}


@gate(
    "HF011",
    "blocks-that-need-dummies",
    upstream="raises",
    when=lambda ctx: ctx.consumer == "accelerate",
    unseen="needs accelerate",
)
def check(ctx: Context) -> Iterator[Finding]:
    """What the script has to pass in their place."""
    blocks = [name for name in _DUMMIES if ctx.has_key(name)]
    if not blocks:
        return
    keys = [f"deepspeed.{name}" for name in blocks]
    names = " and ".join(f"`{name}`" for name in blocks)
    yield ctx.finding(
        f"{names} in the file: the script must pass accelerate's {' and '.join(_DUMMIES[b] for b in blocks)}",
        keys[0],
        notes=["accelerate refuses a real one beside the block"],
        fix=Fix("pass them, or remove the blocks", dict.fromkeys(keys), effect="the script's own objects are used"),
        severity="info",
        of_key=True,
    )
