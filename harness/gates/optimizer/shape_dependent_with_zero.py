"""An optimizer that looks at whole tensors, under ZeRO.

## What it checks
Adafactor and Lamb at ZeRO stages 1 to 3 with `zero_allow_untested_optimizer`.

## Why it fails
ZeRO flattens parameters and cuts them among the ranks. An optimizer whose update depends on rows, columns or the norm
of a tensor then computes something else at each stage and for each number of ranks (Adafactor in runs on 0.19.8:
second loss 4.654 at stage 0, 4.624 at stage 2, 4.510 at stage 3).

## Example
```yaml
zero:
  stage: 2
deepspeed:
  zero_allow_untested_optimizer: true
  optimizer:
    type: Adafactor
    params:
      lr: 1.0e-4
```

## Use instead
```yaml
zero:
  stage: 2
deepspeed:
  optimizer:
    type: AdamW
    params:
      lr: 1.0e-4
```
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.findings import Finding, Fix
from harness.gates.optimizer.known import BY_SHAPE
from harness.gates.registry import Cite, Context, gate


@gate(
    "OP012",
    "optimizer-cut-by-zero",
    upstream="silent",
    cites=(Cite("runtime/engine.py", "You are using ZeRO with an untested optimizer, proceed with caution"),),
    when=lambda ctx: ctx.stage > 0 and ctx.optimizer.name in BY_SHAPE,
)
def check(ctx: Context) -> Iterator[Finding]:
    """Element by element, or not under ZeRO."""
    allow = "deepspeed.zero_allow_untested_optimizer"
    if not ctx.ds("zero_allow_untested_optimizer"):
        return
    yield ctx.finding(
        f"`{ctx.optimizer.type}` computes something else once ZeRO has flattened and cut the parameters",
        "deepspeed.optimizer.type",
        related=[(allow, "which is why DeepSpeed wants this"), ("zero.stage", "the stage is set here")],
        notes=["the result depends on the stage and on the number of ranks"],
        fix=Fix(
            "use `AdamW`, or stage 0",
            {"deepspeed.optimizer.type": "AdamW", allow: None},
            effect="trains with AdamW",
        ),
    )
