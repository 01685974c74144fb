"""Without the gradient norm nothing looks for inf in fp32.

## What it checks
`compute_grad_norm: false` in `zero_optimization` at stage 1 or 2 with neither bf16 nor fp16.

## Why it fails
In fp32 the norm is the only thing that shows an inf or NaN gradient. Without it the step is taken and the weights
become NaN, with no skipped step (run on 0.19.8). In bf16 and fp16 a check of its own still skips the step.

## Example
```yaml
zero:
  stage: 2
train:
  max_grad_norm: 0.0
deepspeed:
  zero_optimization:
    compute_grad_norm: false
```

## Use instead
```yaml
zero:
  stage: 2
train:
  max_grad_norm: 0.0
```
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.findings import Finding, Fix
from harness.gates.registry import Cite, Context, gate


@gate(
    "ZR013",
    "gradient-norm-off-in-fp32",
    upstream="silent",
    cites=(Cite("runtime/zero/config.py", "Compute and retain the global gradient norm during ZeRO Stage 1/2"),),
    since="0.19.7",
    when=lambda ctx: ctx.ds("zero_optimization.compute_grad_norm") is False and ctx.stage in (1, 2),
)
def check(ctx: Context) -> Iterator[Finding]:
    """fp32 has no other check."""
    if (
        ctx.gradient_clipping > 0
        or ctx.is_enabled("bf16")
        or ctx.is_enabled("fp16")
        or ctx.offload_device("offload_optimizer") != "none"
    ):
        return
    if ctx.is_auto("bf16.enabled") or ctx.is_auto("fp16.enabled") or ctx.ds("zero_optimization.zenflow") is not None:
        return
    key = ctx.spec_key("zero_optimization.compute_grad_norm")
    yield ctx.finding(
        f"{ctx.key(key)} is `false` in fp32: an inf gradient makes the weights NaN and no step is skipped",
        key,
        fix=Fix(
            "remove it",
            {key: None},
            effect="the norm is computed in each step, and a step with an inf gradient is skipped",
        ),
        severity="warning",
    )
