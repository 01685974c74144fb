"""Adam that decays weights like AdamW.

## What it checks
`optimizer.type: Adam` in a DeepSpeed configuration with a `weight_decay` above 0 and without `adam_w_mode`.

## Why it fails
DeepSpeed's Adam is AdamW unless `adam_w_mode: false` is written: the decay is applied to the weights, apart from the
gradient, not added to the gradient (run on 0.19.8: the losses of AdamW). The `optimizer` section of a run spec says
`adam` and means it; the harness writes the flag.

## Example
```yaml
zero:
  stage: 1
deepspeed:
  optimizer:
    type: Adam
    params:
      lr: 1.0e-5
      weight_decay: 0.1
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
      weight_decay: 0.1
```
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.findings import Finding, Fix
from harness.gates.registry import Cite, Context, gate


@gate(
    "OP007",
    "adam-decays-like-adamw",
    upstream="silent",
    cites=(
        Cite("runtime/engine.py", "Optimizer name of Adam forces AdamW logic unless adam_w_mode is explicitly set"),
    ),
    when=lambda ctx: ctx.optimizer.name == "adam" and (ctx.run.kind == "deepspeed-json" or ctx.has_key("optimizer")),
)
def check(ctx: Context) -> Iterator[Finding]:
    """The name says Adam, the default says AdamW."""
    optimizer = ctx.optimizer
    decay = optimizer.params.get("weight_decay")
    if (ctx.run.kind == "spec" and optimizer.key == "optimizer") or ctx.has_key("optimizer.params.adam_w_mode"):
        return
    if isinstance(decay, bool) or not isinstance(decay, (int, float)) or decay <= 0:
        return
    yield ctx.finding(
        f"DeepSpeed's `Adam` is AdamW here: the weight decay of {decay:g} is decoupled",
        f"{optimizer.key}.type",
        related=[(f"{optimizer.key}.params.weight_decay", "decays the weights, not the gradient")],
        notes=["`adam_w_mode: false` gives Adam with the decay added to the gradient"],
        fix=Fix(
            "write `AdamW`, which is what is trained",
            {"deepspeed.optimizer.type": "AdamW"},
            effect="the same steps, under their name",
        ),
        severity="warning",
    )
