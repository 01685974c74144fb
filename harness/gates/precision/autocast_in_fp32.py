"""Autocast to a format that torch does not autocast to.

## What it checks
`torch_autocast.enabled` with a `dtype` of fp32 or int8.

## Why it fails
DeepSpeed knows both names and passes them on. `torch.autocast` takes 16-bit formats only: it prints a warning, once,
and switches itself off, and everything is computed in fp32 (run with torch 2.13 on a CPU).

## Example
```yaml
deepspeed:
  torch_autocast:
    enabled: true
    dtype: float32
```

## Use instead
```yaml
deepspeed:
  torch_autocast:
    enabled: true
    dtype: bfloat16
```
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.findings import Finding, Fix
from harness.gates.dtypes import dtype_of
from harness.gates.registry import Cite, Context, gate


@gate(
    "PR009",
    "autocast-to-full-precision",
    upstream="silent",
    since="0.17.2",
    cites=(Cite("runtime/torch_autocast.py", "dtype=engine.torch_autocast_dtype()"),),
    when=lambda ctx: ctx.is_enabled("torch_autocast"),
)
def check(ctx: Context) -> Iterator[Finding]:
    """Autocast is for 16-bit formats."""
    if dtype_of(ctx.ds("torch_autocast.dtype")) not in ("fp32", "int8"):
        return
    place = "deepspeed.torch_autocast.dtype"
    yield ctx.finding(
        f"torch does not autocast to {ctx.ds('torch_autocast.dtype')}: everything is computed in fp32",
        place,
        label="no effect",
        notes=["torch warns once and switches autocast off"],
        fix=Fix(f"set {ctx.key(place)} to `bfloat16`", {place: "bfloat16"}, effect="computes in bf16"),
        severity="warning",
    )
