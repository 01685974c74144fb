"""Offload that loses accumulated gradients.

## What it checks
`zero.offload_optimizer` at stage 2 with more than two accumulation steps, on DeepSpeed 0.15.2 to 0.18.9.

## Why it fails
These releases keep the gradient of the first micro-batch on the CPU and add it to each of the others without storing
the sum: the step sees the first and the last micro-batch, the ones between are lost, and the norm is too small. Mended
in 0.19.0 (run on 0.16.9, 0.17.5, 0.17.6, 0.18.0 to 0.18.4 and 0.19.0; the edges are read in the history of
`stage_1_and_2.py`, pull requests 6550 and 7967). Stages 1 and 3 are right in all of these.

## Example
```yaml
zero:
  stage: 2
  offload_optimizer:
    device: cpu
train:
  gradient_accumulation_steps: 4
```

## Use instead
```yaml
zero:
  stage: 3
  offload_optimizer:
    device: cpu
train:
  gradient_accumulation_steps: 4
```
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.findings import Finding, Fix
from harness.gates.registry import Context, gate


@gate(
    "OF029",
    "offload-loses-accumulated-gradients",
    upstream="wrong",
    since="0.15.2",
    until="0.18.9",
    when=lambda ctx: ctx.stage == 2 and ctx.offload_device("offload_optimizer") != "none",
)
def check(ctx: Context) -> Iterator[Finding]:
    """Only two micro-batches count."""
    steps = ctx.run.batch.accumulation
    if steps is None or steps <= 2:
        return
    yield ctx.finding(
        f"DeepSpeed {ctx.target.text} loses the gradients of {steps - 2} of {steps} micro-batches with this offload",
        "zero.offload_optimizer.device",
        label="only the first and the last count",
        related=[
            ("train.gradient_accumulation_steps", f"{steps} micro-batches a step"),
            ("zero.stage", "stage 2"),
        ],
        fix=Fix(
            f"set {ctx.key('zero.stage')} to 3, or upgrade to DeepSpeed 0.19.0",
            {"zero.stage": 3},
            effect="all micro-batches count; parameters are sharded too",
        ),
    )
