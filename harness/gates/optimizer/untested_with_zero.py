"""An optimizer that ZeRO refuses.

## What it checks
At ZeRO stages 1 to 3, optimizers outside ZeRO's own list (Adam, AdamW, Adagrad, Lion, and Muon from 0.18.5 on)
without `zero_allow_untested_optimizer`.

## Why it fails
`AssertionError: You are using an untested ZeRO Optimizer` on every rank when the engine is built (run on 0.19.8).
Optimizers that compute each element by itself, such as SGD or RMSprop, train the same under ZeRO and may be allowed;
those that look at a whole tensor do not.

## Example
```yaml
zero:
  stage: 2
deepspeed:
  optimizer:
    type: RMSprop
    params:
      lr: 1.0e-4
```

## Use instead
```yaml
zero:
  stage: 2
deepspeed:
  zero_allow_untested_optimizer: true
  optimizer:
    type: RMSprop
    params:
      lr: 1.0e-4
```
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.findings import Finding, Fix
from harness.gates.optimizer.known import BY_SHAPE, OWN, TORCH, ZERO_TESTED
from harness.gates.registry import Cite, Context, gate


@gate(
    "OP011",
    "optimizer-untested-with-zero",
    upstream="asserts",
    cites=(Cite("runtime/engine.py", "You are using an untested ZeRO Optimizer."),),
    when=lambda ctx: ctx.stage > 0,
)
def check(ctx: Context) -> Iterator[Finding]:
    """ZeRO has a list of its own."""
    optimizer = ctx.optimizer
    if ctx.run.kind == "spec" and optimizer.key == "optimizer":
        return  # the harness renders the switch where it is right
    known = str(optimizer.type) in TORCH or optimizer.name in {name.lower() for name in OWN}
    early = optimizer.name == "muon" and (0, 17, 6) <= ctx.target.version < (0, 18, 5)
    if not known or (optimizer.name in ZERO_TESTED and not early) or ctx.ds("zero_allow_untested_optimizer"):
        return
    allow, kind = "deepspeed.zero_allow_untested_optimizer", "deepspeed.optimizer.type"
    fix = (
        Fix("use `AdamW`", {kind: "AdamW"}, effect="trains with AdamW, which computes each element by itself")
        if optimizer.name in BY_SHAPE
        else Fix(f"set {ctx.key(allow)} to true", {allow: True}, safe=True)
    )
    yield ctx.finding(
        f"ZeRO stage {ctx.stage} refuses `{optimizer.type}` unless it is told to take it",
        f"{optimizer.key}.type",
        related=[("zero.stage", "the stage is set here")],
        notes=["DeepSpeed asserts this when it builds the engine"],
        fix=fix,
    )
