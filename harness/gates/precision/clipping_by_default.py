"""No `gradient_clipping` in a DeepSpeed JSON.

## What it checks
A JSON that a plain DeepSpeed script reads, with an `optimizer` and without `gradient_clipping`.

## Why it fails
The default moved: up to 0.19.2 nothing was clipped, from 0.19.3 on gradients are clipped at a norm of 1.0. The same
file trains something else after an upgrade, and nobody is told (run on both: second loss 3.566 and 3.152).

## Example
```json
{
  "train_micro_batch_size_per_gpu": 1,
  "optimizer": {"type": "AdamW", "params": {"lr": 1e-4, "weight_decay": 0.0}},
  "zero_optimization": {"stage": 1}
}
```

## Use instead
```json
{
  "train_micro_batch_size_per_gpu": 1,
  "gradient_clipping": 1.0,
  "optimizer": {"type": "AdamW", "params": {"lr": 1e-4, "weight_decay": 0.0}},
  "zero_optimization": {"stage": 1}
}
```
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.findings import Finding, Fix
from harness.gates.registry import Cite, Context, gate


@gate(
    "PR033",
    "clipping-left-to-the-release",
    upstream="silent",
    cites=(Cite("runtime/constants.py", "GRADIENT_CLIPPING_DEFAULT = 1.0"),),
    when=lambda ctx: ctx.run.kind == "deepspeed-json" and ctx.consumer in (None, "deepspeed"),
)
def check(ctx: Context) -> Iterator[Finding]:
    """Write the norm, so that it means the same tomorrow."""
    if ctx.has_key("gradient_clipping") or ctx.optimizer.type is None:
        return
    now = ctx.gradient_clipping
    clips = f"clips at {now:g}" if now else "does not clip"
    yield ctx.finding(
        f"no `gradient_clipping`: DeepSpeed {ctx.target.text} {clips}",
        ctx.optimizer.key,
        notes=["up to 0.19.2 nothing is clipped without this key, from 0.19.3 on the norm is clipped at 1.0"],
        of_key=True,
        fix=Fix(
            f"set {ctx.key('train.max_grad_norm')} to {now}",
            {"train.max_grad_norm": now},
            effect="on every release as on this one",
        ),
        severity="info",
    )
