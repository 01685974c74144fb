"""Gradients reduced in fp16 that are not fp16.

## What it checks
`communication_data_type: fp16` while the model is not trained in fp16.

## Why it fails
Gradients are cast for the reduction and cast back, without any loss scaling: what is below 6e-8 becomes 0 and what is
above 65504 becomes inf. DeepSpeed accepts it (run on 0.19.8).

## Example
```yaml
precision:
  bf16: true
zero:
  stage: 2
deepspeed:
  communication_data_type: fp16
```

## Use instead
```yaml
precision:
  bf16: true
zero:
  stage: 2
deepspeed:
  communication_data_type: bf16
```
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.findings import Finding, Fix
from harness.gates.dtypes import model_dtype
from harness.gates.registry import Cite, Context, gate


@gate(
    "PR028",
    "unscaled-fp16-communication",
    upstream="silent",
    cites=(Cite("runtime/zero/stage_1_and_2.py", "tensor_to_allreduce = tensor.to(communication_data_type)"),),
    when=lambda ctx: (
        ctx.has_key("communication_data_type")
        and not ctx.is_enabled("torch_autocast")
        and ctx.sequence_parallel_size == 1
    ),
)
def check(ctx: Context) -> Iterator[Finding]:
    """fp16 has no range to spare."""
    model, asked = model_dtype(ctx), ctx.ds("communication_data_type")
    if model in (None, "fp16") or not isinstance(asked, str) or asked.lower() != "fp16":
        return
    place = "deepspeed.communication_data_type"
    yield ctx.finding(
        f"gradients of a model in {model} are reduced in fp16, without loss scaling",
        place,
        label="small gradients become 0, large ones inf",
        fix=Fix(f"set {ctx.key(place)} to `{model}`", {place: model}, effect=f"reduces gradients in {model}"),
        severity="warning",
    )
