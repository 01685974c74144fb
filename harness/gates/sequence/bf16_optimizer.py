"""Sequence parallelism with bf16 weights and fp32 accumulation at stage 1.

## What it checks
A sequence degree above 1 with bf16 and `data_types.grad_accum_dtype: fp32` at ZeRO stage 1, without optimizer offload.

## Why it fails
That combination trains with another optimizer class, `BF16_Optimizer`. It takes the rank in the sequence group for a
tensor rank and leaves out the gradients of all ranks but the first as copies, so that those have none to take the norm
of: `RuntimeError: stack expects a non-empty TensorList` at the first step (run on 0.19.8, on 2 and 4 ranks).

## Example
```yaml
precision:
  bf16: true
zero:
  stage: 1
parallel:
  sequence_parallel_size: 2
deepspeed:
  data_types:
    grad_accum_dtype: fp32
```

## Use instead
```yaml
precision:
  bf16: true
zero:
  stage: 2
parallel:
  sequence_parallel_size: 2
deepspeed:
  data_types:
    grad_accum_dtype: fp32
```
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.findings import Finding, Fix
from harness.gates.dtypes import grad_accum_dtype, model_dtype
from harness.gates.registry import Cite, Context, gate


@gate(
    "SQ011",
    "bf16-optimizer-with-sequence-parallelism",
    upstream="raises",
    cites=(
        Cite("runtime/bf16_optimizer.py", "if not (tensor_mp_rank == 0 or is_model_parallel_parameter(lp)"),
        Cite("runtime/utils.py", "norm_powers = torch.stack(all_norms).pow(norm_type)"),
    ),
    since="0.17.0",
    needs=("a run spec",),
    when=lambda ctx: ctx.sequence_parallel_size > 1 and ctx.stage == 1 and ctx.has_key("data_types.grad_accum_dtype"),
)
def check(ctx: Context) -> Iterator[Finding]:
    """ZeRO-2 accumulates in fp32 as well."""
    if (model_dtype(ctx), grad_accum_dtype(ctx)) != ("bf16", "fp32") or ctx.offload_device(
        "offload_optimizer"
    ) != "none":
        return
    yield ctx.finding(
        f"fp32 accumulation of bf16 at ZeRO stage 1 does not run over {ctx.sequence_parallel_size} sequence ranks",
        "deepspeed.data_types.grad_accum_dtype",
        related=[("parallel.sequence_parallel_size", "sequence parallelism is asked for here")],
        notes=["DeepSpeed takes another optimizer class for it, which fails at the first step"],
        fix=Fix(
            f"set {ctx.key('zero.stage')} to 2",
            {"zero.stage": 2},
            safe=True,
            effect="ZeRO-2 accumulates in fp32 too, and shards the gradients",
        ),
    )
