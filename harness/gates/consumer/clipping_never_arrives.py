"""A file for the Trainer without `gradient_clipping`.

## What it checks
A JSON for the Hugging Face Trainer that does not have the key `gradient_clipping`.

## Why it fails
Under DeepSpeed the Trainer leaves clipping to DeepSpeed, and it fills in only what the file has as "auto". Without the
key its `max_grad_norm` never arrives, and DeepSpeed's own default counts: 1.0 from 0.19.3 on, no clipping before.

## Example
```json
{
  "train_batch_size": "auto",
  "train_micro_batch_size_per_gpu": "auto",
  "gradient_accumulation_steps": "auto",
  "zero_optimization": {"stage": 2}
}
```

## Use instead
```json
{
  "train_batch_size": "auto",
  "train_micro_batch_size_per_gpu": "auto",
  "gradient_accumulation_steps": "auto",
  "gradient_clipping": "auto",
  "zero_optimization": {"stage": 2}
}
```
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.findings import Finding, Fix
from harness.gates.registry import Context, gate


@gate(
    "HF006",
    "clipping-that-never-arrives",
    upstream="silent",
    when=lambda ctx: ctx.consumer == "hf",
    unseen="needs the Hugging Face Trainer",
)
def check(ctx: Context) -> Iterator[Finding]:
    """The Trainer's limit needs a key to arrive by."""
    if ctx.has_key("gradient_clipping"):
        return
    does = "clips at 1.0" if ctx.target.version >= (0, 19, 3) else "does not clip"
    yield ctx.finding(
        f"without {ctx.key('train.max_grad_norm')} the Trainer's `max_grad_norm` never arrives, DeepSpeed {does}",
        "train.max_grad_norm",
        notes=["the Trainer leaves clipping to DeepSpeed and fills in only what the file leaves open"],
        fix=Fix(
            'write `"gradient_clipping": "auto"`',
            {"train.max_grad_norm": "auto"},
            effect="the Trainer's limit is used",
        ),
        severity="warning",
    )
