"""Clipping 16-bit gradients of tensor shards without ZeRO.

## What it checks
A tensor degree above 1 at stage 0 with bf16 or fp16 weights, gradient clipping and an optimizer that is not DeepSpeed's
own Adam or AdamW (`sgd`, `torch_adam: true` and so on).

## Why it fails
Around any optimizer but its own Adam, DeepSpeed at stage 0 in 16 bit takes the norm of gradients that no longer say
which weight they belong to, so that only those of the first tensor rank are counted: of each sharded matrix one shard
instead of all. The norm comes out too small (1.564 instead of 1.894 for a small Llama with torch's AdamW on two ranks
of 0.19.8), and large gradients are clipped too little. Its own Adam at stage 0, fp32 at stage 0, and all formats at
stages 1 and 2 have the norm of one process (run).

## Example
```yaml
optimizer:
  type: sgd
precision:
  bf16: true
zero:
  stage: 0
parallel:
  tensor_parallel_size: 2
```

## Use instead
```yaml
optimizer:
  type: sgd
precision:
  bf16: true
zero:
  stage: 1
parallel:
  tensor_parallel_size: 2
```
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.findings import Finding, Fix
from harness.gates.dtypes import model_dtype
from harness.gates.registry import Cite, Context, gate


@gate(
    "TP021",
    "norm-of-tensor-shards-without-zero",
    upstream="silent",
    cites=(
        Cite("runtime/fp16/unfused_optimizer.py", "get_weight_norm(grads_for_norm, mpu=self.mpu)"),
        Cite("runtime/utils.py", "if (tensor_mp_rank > 0) and not is_model_parallel_parameter(p):"),
    ),
    since="0.16.4",
    when=lambda ctx: ctx.tensor_parallel_size > 1 and ctx.stage == 0,
)
def check(ctx: Context) -> Iterator[Finding]:
    """Stage 1 counts every shard."""
    number_format, optimizer = model_dtype(ctx), ctx.optimizer
    if number_format not in ("bf16", "fp16") or not ctx.run.spec.train.max_grad_norm:
        return
    if optimizer.type is None or (optimizer.name in ("adam", "adamw") and not optimizer.params.get("torch_adam")):
        return
    yield ctx.finding(
        f"at stage 0 in {number_format} the gradient norm leaves out the shards of all tensor ranks but the first",
        "zero.stage",
        related=[
            ("parallel.tensor_parallel_size", "the shards"),
            ("train.max_grad_norm", "clips by the norm"),
        ],
        notes=["DeepSpeed trains with it in silence: large gradients are clipped too little"],
        fix=Fix(
            f"set {ctx.key('zero.stage')} to 1",
            {"zero.stage": 1},
            effect="ZeRO-1 counts every shard, and shards the optimizer states",
        ),
    )
