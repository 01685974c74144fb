"""fp16 autocast in a pipeline.

## What it checks
`torch_autocast` with an fp16 `dtype` and pipeline stages at ZeRO stage 0.

## Why it fails
At stage 0 the engine steps through torch's gradient scaler, which the pipeline's backward pass never told of a loss:
the first step ends in "Attempted unscale_ but _scale is None" (run on 0.19.8).

## Example
```yaml
train:
  gradient_accumulation_steps: 8
  max_grad_norm: 0.0
parallel:
  pipeline_parallel_size: 2
deepspeed:
  torch_autocast:
    enabled: true
    dtype: float16
```

## Use instead
```yaml
train:
  gradient_accumulation_steps: 8
  max_grad_norm: 0.0
parallel:
  pipeline_parallel_size: 2
deepspeed:
  torch_autocast:
    enabled: true
    dtype: bfloat16
```
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.findings import Finding, Fix
from harness.gates.registry import Cite, Context, gate


@gate(
    "PP011",
    "fp16-autocast-in-a-pipeline",
    upstream="crashes",
    cites=(Cite("runtime/engine.py", "# grad scaler only for Z0 (no ZeRO) + fp16 + torch_autocast"),),
    since="0.18.0",
    when=lambda ctx: ctx.pipeline_parallel_size > 1 and ctx.stage == 0 and ctx.is_enabled("torch_autocast"),
)
def check(ctx: Context) -> Iterator[Finding]:
    """The scaler sees no loss."""
    if str(ctx.ds("torch_autocast.dtype")).lower().removeprefix("torch.") not in ("fp16", "float16", "half"):
        return
    key = "deepspeed.torch_autocast.dtype"
    yield ctx.finding(
        "fp16 autocast fails in the first step of a pipeline at ZeRO stage 0",
        key,
        related=[("parallel.pipeline_parallel_size", "the pipeline is asked for here")],
        notes=["torch's gradient scaler was never told of a loss"],
        fix=Fix(f"set {ctx.key(key)} to `bfloat16`", {key: "bfloat16"}, effect="computes in bf16, without scaling"),
    )
