"""ZeRO stage 3 whose weights are not gathered on save, under the Trainer or accelerate.

## What it checks
A JSON for the Hugging Face Trainer or for accelerate with `zero_optimization.stage` 3, and without
`stage3_gather_16bit_weights_on_model_save: true`.

## Why it fails
`save_model` then finds no whole weights anywhere: DeepSpeed's `save_16bit_model` says so in the log and returns False,
and the Trainer writes a sharded checkpoint instead, which only `zero_to_fp32.py` makes a model of.

## Example
```json
{
  "train_batch_size": "auto",
  "train_micro_batch_size_per_gpu": "auto",
  "gradient_clipping": "auto",
  "zero_optimization": {"stage": 3}
}
```

## Use instead
```json
{
  "train_batch_size": "auto",
  "train_micro_batch_size_per_gpu": "auto",
  "gradient_clipping": "auto",
  "zero_optimization": {"stage": 3, "stage3_gather_16bit_weights_on_model_save": true}
}
```
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.findings import Finding, Fix
from harness.gates.registry import Cite, Context, gate

_SAID = {(False, False): "", (True, False): ' "auto", which becomes false,', (True, True): " false"}


@gate(
    "HF007",
    "weights-not-gathered-on-save",
    upstream="silent",
    cites=(Cite("runtime/engine.py", "because stage3_gather_16bit_weights_on_model_save is False"),),
    when=lambda ctx: ctx.consumer in ("hf", "accelerate") and ctx.stage == 3,
    unseen="needs the Hugging Face Trainer or accelerate",
)
def check(ctx: Context) -> Iterator[Finding]:
    """What the Trainer saves is meant to be a model."""
    key = "zero.stage3_gather_16bit_weights_on_model_save"
    if ctx.run.spec.zero.stage3_gather_16bit_weights_on_model_save:
        return
    written = ctx.source.has_key(key)
    on_purpose = written and not ctx.is_auto("zero_optimization.stage3_gather_16bit_weights_on_model_save")
    yield ctx.finding(
        f"{'with' if written else 'without'} {ctx.key(key)}{_SAID[written, on_purpose]} no whole model is saved at"
        " ZeRO stage 3",
        key if written else "zero.stage",
        notes=["the Trainer and accelerate save shards instead, which `zero_to_fp32.py` makes a model of"],
        fix=Fix(f"set {ctx.key(key)} to true", {key: True}, effect="rank 0 gathers all weights in host memory on save"),
        severity="info" if on_purpose else "warning",
    )
