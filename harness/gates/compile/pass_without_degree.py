"""A parallel compile pass without its degree.

## What it checks
`compile.passes: [autotp]` without a tensor degree.

## Why it fails
The pass shards what the tensor-parallel group is there for. With a degree of 1 DeepSpeed logs a line at level info
and uses the plain torch compiler; the ZeRO passes, which were not asked for, do not run either (run on 0.19.8).

## Example
```yaml
zero:
  stage: 1
deepspeed:
  compile:
    passes: [autotp]
```

## Use instead
```yaml
zero:
  stage: 1
parallel:
  tensor_parallel_size: 2
deepspeed:
  compile:
    passes: [autotp]
```
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.findings import Finding, Fix
from harness.gates.registry import Cite, Context, gate


@gate(
    "CC006",
    "parallel-pass-without-its-degree",
    upstream="silent",
    cites=(Cite("runtime/engine.py", "AutoTP compile pass requires tensor_parallel.autotp_size > 1. "),),
    since="0.19.7",
    when=lambda ctx: ctx.has_key("compile"),
    unseen="seen in a log line of engine.compile(), which needs CUDA",
)
def check(ctx: Context) -> Iterator[Finding]:
    """Degrees are set elsewhere."""
    passes = ctx.ds("compile.passes")
    if passes != ["autotp"] or ctx.tensor_parallel_size > 1:
        return
    key = ctx.spec_key("compile.passes")
    yield ctx.finding(
        f"the pass `autotp` shards nothing while {ctx.key('parallel.tensor_parallel_size')} is 1",
        key,
        severity="warning",
        label="has no effect",
        fix=Fix(f"remove {ctx.key(key)}, or set a tensor degree", {key: None}, safe=True),
    )
