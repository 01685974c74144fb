"""Two tensor degrees that differ.

## What it checks
`tensor_parallel.tp.tp_size`, where it is written beside a tensor degree, is 1 or that degree.

## Why it fails
"tensor_parallel.tp.tp_size (4) does not match tensor_parallel.autotp_size (2)": a ValueError at initialisation (run
on 0.19.8).

## Example
```yaml
parallel:
  tensor_parallel_size: 2
deepspeed:
  tensor_parallel:
    tp:
      tp_size: 4
```

## Use instead
```yaml
parallel:
  tensor_parallel_size: 2
```
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.findings import Finding, Fix
from harness.gates.registry import Cite, Context, gate


@gate(
    "TP012",
    "two-tensor-degrees",
    upstream="raises",
    cites=(Cite("runtime/engine.py", 'f"does not match tensor_parallel.autotp_size ({tp_size})."'),),
    since="0.18.6",
    when=lambda ctx: ctx.tensor_parallel_size > 1,
)
def check(ctx: Context) -> Iterator[Finding]:
    """One degree, one place."""
    for block in ("tp", "tensor_parallel"):
        size = ctx.ds(f"tensor_parallel.{block}.tp_size")
        if not isinstance(size, int) or size in (1, ctx.tensor_parallel_size):
            continue
        key, degree = f"deepspeed.tensor_parallel.{block}.tp_size", "parallel.tensor_parallel_size"
        yield ctx.finding(
            f"{ctx.key(key)} is {size}, {ctx.key(degree)} is {ctx.tensor_parallel_size}",
            key,
            related=[(degree, "this one counts")],
            notes=["DeepSpeed raises ValueError at initialisation"],
            fix=Fix(f"remove {ctx.key(key)}", {key: None}, safe=True, effect="the other one is what training reads"),
        )
