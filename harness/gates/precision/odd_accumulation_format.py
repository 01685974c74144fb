"""Gradients accumulated in an odd format under ZeRO.

## What it checks
`data_types.grad_accum_dtype` at ZeRO stages 1 to 3: the model's own format, or fp32.

## Why it fails
Other formats are accepted, `int8` too, and change nothing or lose precision: with a bf16 model `fp16` and `int8` gave
the losses of the default to the last digit, while fp32 did change them (run on 0.19.8, stage 2).

## Example
```yaml
precision:
  bf16: true
zero:
  stage: 2
deepspeed:
  data_types:
    grad_accum_dtype: fp16
```

## Use instead
```yaml
precision:
  bf16: true
zero:
  stage: 2
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
    "PR026",
    "odd-accumulation-format",
    upstream="silent",
    cites=(Cite("runtime/engine.py", "model_dtype, gradient_accumulation_dtype = self.get_data_types()"),),
    when=lambda ctx: ctx.stage > 0 and ctx.has_key("data_types.grad_accum_dtype"),
)
def check(ctx: Context) -> Iterator[Finding]:
    """fp32, or the model's own."""
    model, asked = model_dtype(ctx), grad_accum_dtype(ctx)
    if model is None or asked in (None, "fp32", model):
        return
    place = "deepspeed.data_types.grad_accum_dtype"
    yield ctx.finding(
        f"gradients of a model in {model} are to be accumulated in {asked}",
        place,
        label="accepted, and of no use",
        related=[(f"precision.{model}", "the model's format")],
        notes=["only fp32 makes accumulation more precise"],
        fix=Fix(f"set {ctx.key(place)} to `fp32`", {place: "fp32"}, effect="accumulates in fp32"),
        severity="warning",
    )
