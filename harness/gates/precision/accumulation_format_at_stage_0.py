"""Gradients accumulated in another format than the model's, without ZeRO.

## What it checks
`data_types.grad_accum_dtype` at ZeRO stage 0 against the format that the model is trained in.

## Why it fails
Without ZeRO gradients are accumulated where they appear, in the model's format. DeepSpeed refuses anything else when it
builds the engine: `NotImplementedError: unsupported mix of model_dtype ... and grad_accum_dtype` (run on 0.19.8). bf16
with fp32 accumulation worked up to 0.18.4.

## Example
```yaml
zero:
  stage: 0
deepspeed:
  data_types:
    grad_accum_dtype: bf16
```

## Use instead
```yaml
precision:
  bf16: true
zero:
  stage: 1
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
    "PR025",
    "accumulation-format-at-stage-0",
    upstream="raises",
    cites=(Cite("runtime/engine.py", "unsupported mix of {model_dtype=} and {grad_accum_dtype=}"),),
    when=lambda ctx: ctx.stage == 0 and ctx.has_key("data_types.grad_accum_dtype"),
)
def check(ctx: Context) -> Iterator[Finding]:
    """The model's format, or ZeRO."""
    model, asked = model_dtype(ctx), grad_accum_dtype(ctx)
    if model is None or asked is None or asked == model:
        return
    if (model, asked) == ("bf16", "fp32") and ctx.target.version < (0, 18, 5):
        return
    place = "deepspeed.data_types.grad_accum_dtype"
    fix = (
        Fix(f"set {ctx.key('zero.stage')} to 1", {"zero.stage": 1}, effect=f"ZeRO accumulates in {asked}")
        if asked == "fp32"
        else Fix(f"remove {ctx.key(place)}", {place: None}, effect=f"accumulates in {model}")
    )
    yield ctx.finding(
        f"a model in {model} does not accumulate gradients in {asked} at ZeRO stage 0",
        place,
        related=[("zero.stage", "the stage is set here"), (f"precision.{model}", "the model's format")],
        notes=["DeepSpeed refuses it when it builds the engine"],
        fix=fix,
    )
