"""Lamb with a fixed loss scale.

## What it checks
`optimizer.type: Lamb` with an `fp16.loss_scale` other than 0.

## Why it fails
`AssertionError: DeepSpeed lamb optimizer requires dynamic loss scaling` (run on 0.19.8). DeepSpeed looks at the
number alone, so that a leftover in an `fp16` block that is off is refused too.

## Example
```json
{
  "train_micro_batch_size_per_gpu": 1,
  "gradient_clipping": 1.0,
  "optimizer": {"type": "Lamb", "params": {"lr": 1e-3}},
  "fp16": {"enabled": false, "loss_scale": 128}
}
```

## Use instead
```json
{
  "train_micro_batch_size_per_gpu": 1,
  "gradient_clipping": 1.0,
  "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "weight_decay": 0.0}},
  "fp16": {"enabled": false, "loss_scale": 128}
}
```
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.findings import Finding, Fix
from harness.gates.registry import Cite, Context, gate


@gate(
    "OP013",
    "lamb-with-a-fixed-loss-scale",
    upstream="asserts",
    cites=(Cite("runtime/engine.py", "DeepSpeed {} optimizer requires dynamic loss scaling"),),
    when=lambda ctx: ctx.optimizer.name == "lamb",
)
def check(ctx: Context) -> Iterator[Finding]:
    """Lamb wants a scale that moves."""
    scale = ctx.run.spec.precision.loss_scale
    rendered = ctx.run.kind == "deepspeed-json" or ctx.is_enabled("fp16")
    if scale == 0 or not rendered:
        return
    yield ctx.finding(
        f"`Lamb` needs dynamic loss scaling, and the loss scale is fixed at {scale:g}",
        "precision.loss_scale",
        related=[("deepspeed.optimizer.type", "the optimizer")],
        notes=["DeepSpeed asserts this when it builds the engine"],
        fix=Fix(
            f"set {ctx.key('precision.loss_scale')} to 0",
            {"precision.loss_scale": 0},
            effect="the loss scale is dynamic",
        ),
    )
