"""Clipping asked for in the optimizer's parameters.

## What it checks
`max_grad_norm` in `optimizer.params`.

## Why it fails
`ValueError: 'max_grad_norm' is not supported as an optimizer parameter` when the engine is built (run on 0.19.8);
with an optimizer of the script's own it is only warned about and nothing is clipped at it. The key of the
configuration is `gradient_clipping`.

## Example
```yaml
zero:
  stage: 1
deepspeed:
  optimizer:
    type: AdamW
    params:
      lr: 1.0e-5
      max_grad_norm: 0.5
```

## Use instead
```yaml
train:
  max_grad_norm: 0.5
zero:
  stage: 1
deepspeed:
  optimizer:
    type: AdamW
    params:
      lr: 1.0e-5
```
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.findings import Finding, Fix
from harness.gates.registry import Cite, Context, gate


@gate(
    "OP004",
    "clipping-in-the-optimizer",
    upstream="raises",
    cites=(Cite("runtime/engine.py", "'max_grad_norm' is not supported as an optimizer parameter"),),
)
def check(ctx: Context) -> Iterator[Finding]:
    """It has a key of its own."""
    place, own = "deepspeed.optimizer.params.max_grad_norm", "train.max_grad_norm"
    if not ctx.has_key("optimizer.params.max_grad_norm"):
        return
    norm = ctx.ds("optimizer.params.max_grad_norm")
    number = isinstance(norm, (int, float)) and not isinstance(norm, bool) and norm >= 0
    move = number and not ctx.has_key("gradient_clipping")
    yield ctx.finding(
        f"{ctx.key(place)} is no parameter of an optimizer",
        place,
        related=[(own, "gradients are clipped by this")],
        notes=["DeepSpeed refuses it when it builds the engine"],
        fix=Fix(
            f"write {ctx.key(own)} instead" if move else f"remove {ctx.key(place)}",
            {place: None} | ({own: norm} if move else {}),
            safe=move,
            effect="" if move else f"clips as {ctx.key(own)} says",
        ),
    )
