"""AMSGrad where DeepSpeed has none.

## What it checks
`amsgrad: true` with DeepSpeed's own Adam, AdamW or Lamb.

## Why it fails
`RuntimeError: FusedAdam does not support the AMSGrad variant` when the engine is built, and the same of
DeepSpeedCPUAdam (run on 0.19.8). torch's classes do support it.

## Example
```yaml
zero:
  stage: 1
deepspeed:
  optimizer:
    type: AdamW
    params:
      lr: 1.0e-5
      weight_decay: 0.0
      amsgrad: true
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
      amsgrad: true
      torch_adam: true
```
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.findings import Finding, Fix
from harness.gates.registry import Cite, Context, gate


@gate(
    "OP016",
    "amsgrad-not-implemented",
    upstream="raises",
    cites=(
        Cite("ops/adam/fused_adam.py", "FusedAdam does not support the AMSGrad variant."),
        Cite("ops/adam/cpu_adam.py", "DeepSpeedCPUAdam does not support the AMSGrad variant."),
    ),
    when=lambda ctx: ctx.optimizer.name in ("adam", "adamw", "lamb"),
)
def check(ctx: Context) -> Iterator[Finding]:
    """Only torch's classes have it."""
    params = ctx.optimizer.params
    if not params.get("amsgrad") or params.get("torch_adam"):
        return
    place, own = "deepspeed.optimizer.params.amsgrad", "deepspeed.optimizer.params.torch_adam"
    lamb = ctx.optimizer.name == "lamb"
    yield ctx.finding(
        f"DeepSpeed's {ctx.optimizer.type} has no AMSGrad variant",
        place,
        notes=["DeepSpeed refuses it when it builds the engine"],
        fix=Fix(f"remove {ctx.key(place)}", {place: None}, effect="trains without AMSGrad")
        if lamb
        else Fix(f"set {ctx.key(own)} to true", {own: True}, safe=True, effect="torch's AdamW, slower"),
    )
