"""Keys that nothing reads.

## What it checks
`allgather_partitions: false` in `zero_optimization`, or `disable_allgather: true` at the top level.

## Why it fails
DeepSpeed still has getters for both, and nothing asks them: parameters are always gathered, in buckets (read in 0.19.8;
`disable_allgather` was run there).

## Example
```yaml
zero:
  stage: 2
deepspeed:
  zero_optimization:
    allgather_partitions: false
```

## Use instead
```yaml
zero:
  stage: 2
```
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.findings import Finding, Fix
from harness.gates.registry import Cite, Context, gate


@gate(
    "ZR024",
    "keys-that-nothing-reads",
    upstream="silent",
    cites=(Cite("runtime/engine.py", "def zero_allgather_partitions(self)"),),
)
def check(ctx: Context) -> Iterator[Finding]:
    """Left over from older releases."""
    for name, idle in (("zero_optimization.allgather_partitions", True), ("disable_allgather", False)):
        if ctx.ds(name, idle) is not (not idle):
            continue
        key = ctx.home(name)
        yield ctx.finding(
            f"{ctx.key(key)} is read by nothing in DeepSpeed",
            key,
            label="has no effect",
            fix=Fix("remove it", {key: None}, safe=True),
            severity="info",
            of_key=True,
        )
