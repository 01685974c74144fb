"""Buffers to keep in fp32, not as a list.

## What it checks
`data_types.keep_in_fp32_modules`: `auto`, or a list of name patterns.

## Why it fails
A single name is refused when the configuration is read: `data_types.keep_in_fp32_modules must be "auto" or a list of
name patterns` (run on 0.19.8).

## Example
```yaml
precision:
  bf16: true
zero:
  stage: 1
deepspeed:
  data_types:
    keep_in_fp32_modules: rotary_emb
```

## Use instead
```yaml
precision:
  bf16: true
zero:
  stage: 1
deepspeed:
  data_types:
    keep_in_fp32_modules: [rotary_emb]
```
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.findings import Finding, Fix
from harness.gates.registry import Cite, Context, gate


@gate(
    "PR031",
    "fp32-modules-not-a-list",
    upstream="raises",
    since="0.19.7",
    cites=(Cite("runtime/config.py", "data_types.{KEEP_IN_FP32_MODULES} must be"),),
    when=lambda ctx: ctx.has_key("data_types.keep_in_fp32_modules"),
)
def check(ctx: Context) -> Iterator[Finding]:
    """A list, even of one."""
    names = ctx.ds("data_types.keep_in_fp32_modules")
    fine = isinstance(names, (list, tuple)) and all(isinstance(name, str) for name in names)
    if names is None or fine:
        return
    place = "deepspeed.data_types.keep_in_fp32_modules"
    single = isinstance(names, str)
    yield ctx.finding(
        f"{ctx.key(place)} must be a list of name patterns",
        place,
        notes=["DeepSpeed refuses anything else when it reads its configuration"],
        fix=Fix(
            f"write `[{names}]`" if single else f"remove {ctx.key(place)}",
            {place: [names] if single else None},
            safe=single,
            effect="" if single else "takes what the model itself declares",
        ),
    )
