"""Muon's updates clipped instead of its gradients.

## What it checks
`optimizer.type: Muon` at ZeRO stages 1 to 3 while gradients are clipped.

## Why it fails
Under ZeRO the gradient has become Muon's orthogonalised update before the norm is taken. Its norm grows with the
number of matrices (12.4 for a model of 7 thousand parameters), so that clipping at 1.0 divides every step by it; the
same file at stage 0 clips the gradient (run on 0.19.8: second loss 4.697 at stages 1 to 3, 4.577 at stage 0 and
without clipping).

## Example
```yaml
train:
  max_grad_norm: 1.0
zero:
  stage: 2
deepspeed:
  optimizer:
    type: Muon
    params:
      lr: 2.0e-2
```

## Use instead
```yaml
train:
  max_grad_norm: 0.0
zero:
  stage: 2
deepspeed:
  optimizer:
    type: Muon
    params:
      lr: 2.0e-2
```
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.findings import Finding, Fix
from harness.gates.dtypes import grad_accum_dtype, model_dtype
from harness.gates.registry import Cite, Context, gate


@gate(
    "OP019",
    "muon-clips-its-updates",
    upstream="silent",
    since="0.17.6",
    cites=(
        Cite(
            "runtime/zero/stage_1_and_2.py", "Muon update runs before the norm and the clip covers the orthogonalized"
        ),
    ),
    when=lambda ctx: ctx.optimizer.name == "muon" and ctx.stage > 0,
)
def check(ctx: Context) -> Iterator[Finding]:
    """The norm of an update says nothing."""
    other = ctx.stage == 1 and model_dtype(ctx) == "bf16" and grad_accum_dtype(ctx) == "fp32"
    if ctx.gradient_clipping <= 0 or (other and ctx.offload_device("offload_optimizer") != "cpu"):
        return
    norm = "train.max_grad_norm"
    yield ctx.finding(
        f"at ZeRO stage {ctx.stage} Muon's updates are clipped at {ctx.gradient_clipping:g}, not its gradients",
        norm if ctx.source.has_key(norm) else "deepspeed.optimizer.type",
        related=[("zero.stage", "the stage is set here")],
        notes=["an orthogonalised update has a norm far above 1, so that every step is divided by it"],
        fix=Fix(f"set {ctx.key(norm)} to 0", {norm: 0.0}, effect="nothing is clipped"),
        severity="warning",
    )
