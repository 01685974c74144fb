"""A communication format that DeepSpeed does not know.

## What it checks
`communication_data_type` and `seq_parallel_communication_data_type`: `fp32`, `fp16` or `bf16`, in any case.

## Why it fails
These two keys have a vocabulary of their own: the long names that other keys take, such as `float32` or `bfloat16`, are
refused with `ValueError: Invalid communication_data_type` when the configuration is read (run on 0.19.8).

## Example
```yaml
deepspeed:
  communication_data_type: float32
```

## Use instead
```yaml
deepspeed:
  communication_data_type: fp32
```
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.findings import Finding, Fix
from harness.gates.dtypes import dtype_of
from harness.gates.registry import Cite, Context, gate

_KEYS = ("communication_data_type", "seq_parallel_communication_data_type")


@gate(
    "PR007",
    "communication-format-name",
    upstream="raises",
    cites=(Cite("runtime/config.py", "Invalid communication_data_type. Supported data types:"),),
)
def check(ctx: Context) -> Iterator[Finding]:
    """Short names only."""
    for key in _KEYS:
        name = ctx.ds(key)
        if not isinstance(name, str) or name.lower() in ("fp32", "fp16", "bf16"):
            continue
        better = dtype_of(name.lower())
        place = f"deepspeed.{key}"
        short = better if better in ("fp32", "fp16", "bf16") else "fp32"
        yield ctx.finding(
            f"{ctx.key(place)} is `{name[:30]}` where `fp32`, `fp16` or `bf16` belongs",
            place,
            notes=["DeepSpeed refuses any other name when it reads its configuration"],
            fix=Fix(
                f"set {ctx.key(place)} to `{short}`",
                {place: short},
                safe=better == short,
                effect="" if better == short else "gradients are reduced in fp32",
            ),
        )
