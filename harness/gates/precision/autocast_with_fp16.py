"""Autocast and fp16 weights at once.

## What it checks
`torch_autocast.enabled` together with `fp16.enabled`.

## Why it fails
Each has its own loss scaling. With autocast in fp16 the first step at stage 0 fails with `AssertionError: No inf checks
were recorded for this optimizer`. At stages 1 to 3 the loss is scaled once and the gradients are divided twice: SGD
moves the weights by less than a hundredth of what was asked, Adam is throttled by its epsilon, and nothing is said (run
on 0.19.8 at stages 0, 1 and 3). Autocast in bf16 computes in bf16 and leaves fp16's scaling without a purpose.

## Example
```yaml
optimizer:
  type: sgd
  learning_rate: 0.1
precision:
  fp16: true
zero:
  stage: 1
deepspeed:
  torch_autocast:
    enabled: true
    dtype: float16
```

## Use instead
```yaml
optimizer:
  type: sgd
  learning_rate: 0.1
precision:
  fp16: true
zero:
  stage: 1
```
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.findings import Finding, Fix
from harness.gates.dtypes import dtype_of
from harness.gates.registry import Cite, Context, gate


@gate(
    "PR010",
    "autocast-with-fp16",
    upstream="silent",
    since="0.17.2",
    cites=(Cite("runtime/engine.py", "self.torch_autocast_z0_gradscaler.step(self.optimizer)"),),
    when=lambda ctx: ctx.is_enabled("torch_autocast") and ctx.is_enabled("fp16"),
)
def check(ctx: Context) -> Iterator[Finding]:
    """One of the two."""
    twice = dtype_of(ctx.ds("torch_autocast.dtype")) == "fp16"
    does = "the first step fails" if ctx.stage == 0 else "gradients are divided by the loss scale twice"
    yield ctx.finding(
        f"{ctx.key('deepspeed.torch_autocast.enabled')} and {ctx.key('precision.fp16')} are both on"
        + (f": {does}" if twice else ": what is computed is bf16"),
        "deepspeed.torch_autocast.enabled",
        related=[("precision.fp16", "and here")],
        notes=["both bring a loss scaling of their own" if twice else "fp16's loss scaling has no purpose then"],
        fix=Fix(
            f"remove {ctx.key('deepspeed.torch_autocast')}",
            {"deepspeed.torch_autocast": None},
            effect="trains in fp16 with DeepSpeed's own loss scaling",
        ),
        severity="error" if twice else "warning",
    )
