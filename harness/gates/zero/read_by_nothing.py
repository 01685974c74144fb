"""Keys that nothing reads.

## What it checks
`allgather_partitions: false` in `zero_optimization`, or `disable_allgather: true` at the top level; at stages 1 and 2
`allgather_bucket_size`, unless ZenFlow uses it.

## Why it fails
DeepSpeed still has getters for the first two, and nothing asks them: parameters are always gathered. They are gathered
in place and at once wherever torch can do that (1.13 and later), so the size of a bucket decides nothing, memory
neither (read in 0.19.8; `disable_allgather` and a small bucket were run there).

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

_GETTERS = {"zero_optimization.allgather_partitions": True, "disable_allgather": False}
"""Key -> its default."""
_BUCKET = "zero_optimization.allgather_bucket_size"


@gate(
    "ZR024",
    "keys-that-nothing-reads",
    upstream="silent",
    cites=(
        Cite("runtime/engine.py", "def zero_allgather_partitions(self)"),
        Cite("runtime/utils.py", "return all_gather_into_tensor_dp_groups(groups_flat"),
    ),
)
def check(ctx: Context) -> Iterator[Finding]:
    """Left over from older releases."""
    idle = [name for name, default in _GETTERS.items() if ctx.ds(name, default) is not default]
    size = ctx.ds(_BUCKET, 0)
    if size and size % 2 == 0 and ctx.stage in {1, 2} and not ctx.ds("zero_optimization.zenflow"):  # odd: ZR004
        idle.append(_BUCKET)
    for name in idle:
        key = ctx.spec_key(name)
        yield ctx.finding(
            f"{ctx.key(key)} is used by nothing in DeepSpeed",
            key,
            label="has no effect",
            fix=Fix("remove it", {key: None}, safe=True),
            severity="info",
            of_key=True,
        )
