"""Weight decay that nobody asked for.

## What it checks
`torch_adam: true` without `weight_decay`, where DeepSpeed takes torch's AdamW.

## Why it fails
FusedAdam and DeepSpeedCPUAdam do not decay unless told to; torch's AdamW decays by 0.01. The switch of the
implementation is a switch of the regularisation (run on 0.19.8: other losses).

## Example
```yaml
zero:
  stage: 1
deepspeed:
  optimizer:
    type: AdamW
    params:
      lr: 1.0e-5
      torch_adam: true
```

## Use instead
```yaml
zero:
  stage: 1
deepspeed:
  optimizer:
    type: AdamW
    params:
      lr: 1.0e-5
      weight_decay: 0.0
      torch_adam: true
```
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.findings import Finding, Fix
from harness.gates.registry import Cite, Context, gate


@gate(
    "OP009",
    "torch-adam-decays-by-default",
    upstream="silent",
    cites=(Cite("runtime/engine.py", "torch.optim.AdamW if adam_w_mode else torch.optim.Adam"),),
    when=lambda ctx: ctx.optimizer.name in ("adam", "adamw"),
)
def check(ctx: Context) -> Iterator[Finding]:
    """Write the decay."""
    params = ctx.optimizer.params
    if params.get("torch_adam") is not True or ctx.has_key("optimizer.params.weight_decay"):
        return
    if ctx.optimizer.name == "adam" and params.get("adam_w_mode") is False:
        return  # torch's Adam does not decay by default
    place = "deepspeed.optimizer.params.weight_decay"
    yield ctx.finding(
        "torch's AdamW decays weights by 0.01 when no `weight_decay` is given",
        "deepspeed.optimizer.params.torch_adam",
        notes=["DeepSpeed's own Adam does not decay unless it is told to"],
        fix=Fix(f"set {ctx.key(place)} to 0.01, or to what is meant", {place: 0.01}, safe=True),
        severity="warning",
    )
