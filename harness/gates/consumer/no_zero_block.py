"""A file for the Trainer or accelerate without `zero_optimization`.

## What it checks
A JSON for the Hugging Face Trainer or for accelerate that has no `zero_optimization` block.

## Why it fails
accelerate refuses it, under the Trainer too: "Please specify the ZeRO optimization config in the DeepSpeed config"
(run with accelerate 1.15). DeepSpeed itself would train at stage 0.

## Example
```json
{
  "train_batch_size": "auto",
  "train_micro_batch_size_per_gpu": "auto",
  "gradient_clipping": "auto"
}
```

## Use instead
```json
{
  "train_batch_size": "auto",
  "train_micro_batch_size_per_gpu": "auto",
  "gradient_clipping": "auto",
  "zero_optimization": {"stage": 0}
}
```
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.findings import Finding, Fix
from harness.gates.registry import Context, gate


@gate(
    "HF009",
    "no-zero-block",
    upstream="raises",
    when=lambda ctx: ctx.consumer in ("hf", "accelerate"),
    unseen="needs the Hugging Face Trainer or accelerate",
)
def check(ctx: Context) -> Iterator[Finding]:
    """The block must be there, even for stage 0."""
    if ctx.has_key("zero_optimization") or ctx.ds("autotuning.enabled") is True:
        return  # the autotuner writes the block into each file that it tries
    yield ctx.finding(
        "there is no `zero_optimization` block, without which accelerate and the Trainer refuse the file",
        "zero.stage",
        notes=['accelerate ends with "Please specify the ZeRO optimization config in the DeepSpeed config"'],
        fix=Fix('write `"zero_optimization": {"stage": 0}`', {"zero.stage": 0}, safe=True),
    )
