"""Many micro-batches summed up in bf16.

## What it checks
`precision.bf16` with 64 or more accumulation steps and no `data_types.grad_accum_dtype`, at ZeRO stages 1 to 3.

## Why it matters
bf16 has 8 bits of precision: beside a sum of 64 micro-batches a new one loses most of its digits. DeepSpeed accumulates
in the model's format unless it is told fp32, which costs 4 bytes a parameter over the data-parallel ranks.

## Why it fails
Nothing fails: the sum is only less exact than it could be (fp32 accumulation changed the losses of a run on 0.19.8 from
the second step on).

## Example
```yaml
train:
  per_device_train_batch_size: 1
  gradient_accumulation_steps: 128
precision:
  bf16: true
zero:
  stage: 2
```

## Use instead
```yaml
train:
  per_device_train_batch_size: 1
  gradient_accumulation_steps: 128
precision:
  bf16: true
zero:
  stage: 2
deepspeed:
  data_types:
    grad_accum_dtype: fp32
```
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.findings import Finding, Fix
from harness.gates.registry import Cite, Context, gate


@gate(
    "PR032",
    "many-micro-batches-summed-in-bf16",
    upstream="silent",
    cites=(Cite("runtime/engine.py", "BF16 gradient accumulation is not safe numerically"),),
    when=lambda ctx: ctx.is_enabled("bf16") and ctx.stage > 0,
)
def check(ctx: Context) -> Iterator[Finding]:
    """Long sums want more digits."""
    steps = ctx.run.batch.accumulation
    if steps is None or steps < 64 or ctx.has_key("data_types.grad_accum_dtype"):
        return
    place = "deepspeed.data_types.grad_accum_dtype"
    yield ctx.finding(
        f"{steps} micro-batches are summed up in bf16, which has 8 bits of precision",
        "train.gradient_accumulation_steps",
        related=[("precision.bf16", "gradients are accumulated in the model's format")],
        fix=Fix(f"set {ctx.key(place)} to `fp32`", {place: "fp32"}, effect="accumulates in fp32, with more memory"),
        severity="info",
    )
