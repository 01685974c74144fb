"""A parameter format that is not the one trained in.

## What it checks
`data_types.param_dtype` against `bf16.enabled` and `fp16.enabled`.

## Why it fails
The key does not switch a precision on; it only has to agree with the one that is on. DeepSpeed asserts it when it
builds the engine (run on 0.19.8). Before 0.19.2 it was ignored.

## Example
```yaml
precision:
  bf16: true
zero:
  stage: 1
deepspeed:
  data_types:
    param_dtype: fp16
```

## Use instead
```yaml
precision:
  bf16: true
zero:
  stage: 1
```
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.findings import Finding, Fix
from harness.gates.dtypes import dtype_of, model_dtype
from harness.gates.registry import Cite, Context, gate


@gate(
    "PR027",
    "parameter-format-mismatch",
    upstream="asserts",
    since="0.19.2",
    cites=(Cite("runtime/engine.py", "conflicts with the"),),
    when=lambda ctx: ctx.has_key("data_types.param_dtype"),
)
def check(ctx: Context) -> Iterator[Finding]:
    """It follows the precision, it does not set it."""
    model, asked = model_dtype(ctx), dtype_of(ctx.ds("data_types.param_dtype"))
    if model is None or asked in (None, model):
        return
    place = "deepspeed.data_types.param_dtype"
    yield ctx.finding(
        f"{ctx.key(place)} is {asked}, and the model is trained in {model}",
        place,
        related=[(f"precision.{model}", "switched on here")],
        notes=["the key switches nothing on; DeepSpeed asserts that it agrees with `bf16` and `fp16`"],
        fix=Fix(f"remove {ctx.key(place)}", {place: None}, effect=f"trains in {model}"),
    )
