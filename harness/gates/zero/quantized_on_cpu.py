"""Quantized weights without CUDA.

## What it checks
`zero_quantized_weights` or `zero_quantized_nontrainable_weights` at stage 3 on the CPU accelerator.

## Why it fails
The quantizer is a CUDA kernel: ValueError "This op had not been implemented on CPU backend." when `zero.Init` or the
engine is built (run on 0.19.8).

## Example
```yaml
zero:
  stage: 3
deepspeed:
  zero_optimization:
    zero_quantized_weights: true
cluster:
  gpu: cpu
```

## Use instead
```yaml
zero:
  stage: 3
deepspeed:
  zero_optimization:
    zero_quantized_weights: true
cluster:
  gpu: H100-80GB
```
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.findings import Finding, Fix
from harness.gates.registry import Cite, Context, gate

_NAMES = ("zero_quantized_weights", "zero_quantized_nontrainable_weights")


def _asked(ctx: Context) -> str | None:
    return next((name for name in _NAMES if ctx.ds(f"zero_optimization.{name}") is True), None)


@gate(
    "ZR019",
    "quantized-weights-off-cuda",
    upstream="raises",
    cites=(Cite("runtime/zero/partition_parameters.py", "self.quantizer_module = CUDAQuantizer()"),),
    needs=("the accelerator",),
    when=lambda ctx: ctx.stage == 3 and _asked(ctx) is not None,
)
def check(ctx: Context) -> Iterator[Finding]:
    """The quantizer is a CUDA kernel."""
    name = _asked(ctx)
    if name is None or ctx.accelerator == "cuda":
        return
    key = ctx.spec_key(f"zero_optimization.{name}")
    yield ctx.finding(
        f"{ctx.key(key)} needs CUDA, this run is on `{ctx.accelerator}`",
        key,
        label="a CUDA kernel",
        fix=Fix(
            "remove it",
            {ctx.spec_key(f"zero_optimization.{n}"): None for n in _NAMES},
            effect="weights are gathered in full precision",
        ),
    )
