"""A tensor degree in the wrong key.

## What it checks
`tensor_parallel.tp.tp_size` (or its long name) above 1 while no tensor degree is set.

## Why it fails
Training reads `autotp_size` alone; `tp.tp_size` belongs to inference. With only the latter nothing is sharded, every
rank keeps whole layers and trains data parallel (run on 0.19.8).

## Example
```yaml
deepspeed:
  tensor_parallel:
    tp:
      tp_size: 2
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
    "TP011",
    "tensor-degree-in-tp-size-alone",
    upstream="silent",
    cites=(Cite("runtime/engine.py", "return self._config.tensor_parallel_config.autotp_size"),),
    since="0.16.4",
    when=lambda ctx: ctx.tensor_parallel_size == 1,
)
def check(ctx: Context) -> Iterator[Finding]:
    """`tp_size` is inference's."""
    for block in ("tp", "tensor_parallel"):
        size = ctx.ds(f"tensor_parallel.{block}.tp_size")
        if not isinstance(size, int) or size < 2:
            continue
        key, degree = f"deepspeed.tensor_parallel.{block}.tp_size", "parallel.tensor_parallel_size"
        yield ctx.finding(
            f"training does not read {ctx.key(key)}: there is no tensor parallelism over {size} ranks",
            key,
            label="has no effect",
            notes=["every rank keeps whole layers and trains data parallel"],
            fix=Fix(
                f"set {ctx.key(degree)} to {size} and remove it",
                {degree: size, key: None},
                effect=f"shards each layer over {size} ranks",
            ),
        )
