"""No learning rate.

## What it checks
A DeepSpeed `optimizer` block without `lr`, where no scheduler of the configuration sets the rate either.

## Why it fails
The class's own default is taken in silence: 0.001 for AdamW and SGD, 0.01 for Adagrad (run on 0.19.8). That is a
hundred times what fine-tuning takes.

## Example
```yaml
zero:
  stage: 1
deepspeed:
  optimizer:
    type: AdamW
    params:
      weight_decay: 0.0
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
```
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.findings import Finding, Fix
from harness.gates.optimizer.known import accepted
from harness.gates.registry import Cite, Context, gate

_DEFAULTS = {"adagrad": 0.01, "adadelta": 1.0, "asgd": 0.01, "adafactor": 0.01, "adamax": 0.002, "nadam": 0.002}
_DEFAULTS |= {"rmsprop": 0.01, "rprop": 0.01, "muon": 0.02}


@gate(
    "OP010",
    "rate-left-to-the-optimizer",
    upstream="silent",
    cites=(Cite("ops/adam/fused_adam.py", "lr=1e-3,"),),
    when=lambda ctx: ctx.has_key("optimizer.type") and not ctx.has_key("optimizer.params.lr"),
)
def check(ctx: Context) -> Iterator[Finding]:
    """Write the rate."""
    params = ctx.optimizer.params
    ours = ctx.run.kind == "spec" and ctx.optimizer.key == "optimizer"
    scheduled = any(
        ctx.has_key(f"scheduler.params.{key}") for key in ("warmup_max_lr", "cycle_max_lr", "lr_range_test_min_lr")
    )
    if ours or scheduled or accepted(ctx) is None or {"muon_lr", "adam_lr", "learning_rate"} & set(params):
        return
    if any(ctx.has_key(key) for key in ("optimizer.lr", "optimizer.learning_rate", "learning_rate", "lr")):
        return  # in the wrong place, which is told there
    rate = _DEFAULTS.get(ctx.optimizer.name, 0.001)
    place = "deepspeed.optimizer.params.lr"
    yield ctx.finding(
        f"no `lr`: {ctx.optimizer.type} trains with its own default of {rate:g}",
        f"{ctx.optimizer.key}.type",
        notes=["DeepSpeed passes on what is written and leaves the rest to the class"],
        fix=Fix(f"set {ctx.key(place)} to {rate:g}, or to what is meant", {place: rate}, safe=True),
        severity="warning",
    )
