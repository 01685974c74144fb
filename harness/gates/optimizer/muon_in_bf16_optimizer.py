"""Muon with fp32 accumulation at stage 1.

## What it checks
`optimizer.type: Muon` with bf16, `data_types.grad_accum_dtype: fp32` and ZeRO stage 1 without offload.

## Why it fails
This one combination takes BF16_Optimizer instead of ZeRO's: it clips gradients where the others clip updates, gives
other losses (run on 0.19.8), and refuses tensor parallelism and MoE: `BF16 Muon currently requires FP32 accumulation,
dense DP and eager execution`.

## Example
```yaml
train:
  max_grad_norm: 0.0
precision:
  bf16: true
zero:
  stage: 1
deepspeed:
  data_types:
    grad_accum_dtype: fp32
  optimizer:
    type: Muon
    params:
      lr: 2.0e-2
```

## Use instead
```yaml
train:
  max_grad_norm: 0.0
precision:
  bf16: true
zero:
  stage: 2
deepspeed:
  data_types:
    grad_accum_dtype: fp32
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
    "OP020",
    "muon-in-another-wrapper",
    upstream="silent",
    since="0.19.8",
    cites=(Cite("runtime/bf16_optimizer.py", "BF16 Muon currently requires FP32 accumulation, dense DP and eager"),),
    when=lambda ctx: ctx.optimizer.name == "muon" and ctx.stage == 1,
)
def check(ctx: Context) -> Iterator[Finding]:
    """One combination is unlike all others."""
    if (
        model_dtype(ctx) != "bf16"
        or grad_accum_dtype(ctx) != "fp32"
        or ctx.offload_device("offload_optimizer") == "cpu"
    ):
        return
    split = ctx.tensor_parallel_size > 1
    place = "deepspeed.data_types.grad_accum_dtype"
    yield ctx.finding(
        "`Muon` in bf16 with fp32 accumulation at ZeRO stage 1 "
        + ("refuses tensor parallelism" if split else "trains unlike at any other stage"),
        place,
        related=[("zero.stage", "the stage is set here"), ("deepspeed.optimizer.type", "the optimizer")],
        notes=["DeepSpeed wraps it in BF16_Optimizer instead of a ZeRO optimizer"],
        fix=Fix(f"set {ctx.key('zero.stage')} to 2", {"zero.stage": 2}, effect="ZeRO's own Muon, gradients sharded"),
        severity="error" if split else "warning",
    )
