"""A name of torch.optim that is no usable optimizer.

## What it checks
`optimizer.type` among the names that torch.optim has and an engine cannot use: `Optimizer`, `lr_scheduler`,
`swa_utils`, `LBFGS`, `SparseAdam`.

## Why it fails
DeepSpeed only asks whether torch.optim has something of that name. The base class and modules fail when the engine is
built, LBFGS and SparseAdam at the first step (run on 0.19.8).

## Example
```yaml
zero:
  stage: 0
deepspeed:
  optimizer:
    type: LBFGS
    params:
      lr: 1.0e-2
```

## Use instead
```yaml
zero:
  stage: 0
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
from harness.gates.optimizer.known import UNUSABLE
from harness.gates.registry import Cite, Context, gate


@gate(
    "OP003",
    "optimizer-not-usable",
    upstream="raises",
    cites=(Cite("runtime/engine.py", "getattr(torch.optim, optimizer_name, None) is not None"),),
)
def check(ctx: Context) -> Iterator[Finding]:
    """Having the name is not enough."""
    name = ctx.optimizer.type
    if not isinstance(name, str) or name not in UNUSABLE:
        return
    place = "deepspeed.optimizer.type"
    yield ctx.finding(
        f"`{name}` cannot train with DeepSpeed: {UNUSABLE[name]}",
        place,
        notes=["DeepSpeed accepts every name that torch.optim has"],
        fix=Fix("use `AdamW`", {place: "AdamW"}, effect="trains with AdamW"),
    )
