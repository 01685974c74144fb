"""16-bit master weights without ZeRO.

## What it checks
`bf16.bf16_master_weights_and_grads`, `bf16.bf16_optimizer_states` or `fp16.fp16_master_weights_and_grads` at ZeRO stage
0.

## Why it fails
Only ZeRO optimizers keep master weights in 16-bit. DeepSpeed asserts it when it reads the configuration, even where the
block itself is off (run on 0.19.8).

## Example
```yaml
optimizer:
  type: sgd
precision:
  bf16: true
zero:
  stage: 0
deepspeed:
  bf16:
    bf16_master_weights_and_grads: true
```

## Use instead
```yaml
optimizer:
  type: sgd
precision:
  bf16: true
zero:
  stage: 0
```
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.findings import Finding, Fix
from harness.gates.registry import Cite, Context, gate

_FLAGS = ("bf16.bf16_master_weights_and_grads", "bf16.bf16_optimizer_states", "fp16.fp16_master_weights_and_grads")


@gate(
    "PR021",
    "masters-in-16-bit-at-stage-0",
    upstream="asserts",
    cites=(Cite("runtime/config.py", "Bf16_master_weights_and_grads is only supported with ZeRO Stage 1, 2, or 3."),),
    when=lambda ctx: ctx.stage == 0,
)
def check(ctx: Context) -> Iterator[Finding]:
    """A feature of ZeRO."""
    set_here = [flag for flag in _FLAGS if ctx.ds(flag) is True]
    if not set_here:
        return
    place = f"deepspeed.{set_here[0]}"
    yield ctx.finding(
        f"{ctx.key(place)} needs ZeRO stage 1, 2 or 3",
        place,
        related=[("zero.stage", "the stage is set here")],
        notes=["DeepSpeed asserts this when it reads its configuration, whether the block is on or off"],
        fix=Fix(
            "remove " + " and ".join(ctx.key(f"deepspeed.{flag}") for flag in set_here),
            {f"deepspeed.{flag}": None for flag in set_here},
            effect="keeps master weights in fp32",
        ),
    )
