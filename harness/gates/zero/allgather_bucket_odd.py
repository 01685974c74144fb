"""An allgather bucket of an odd size.

## What it checks
`zero.allgather_bucket_size` that is odd, at stage 1 or 2.

## Why it fails
The optimizer of stages 1 and 2 asserts a multiple of 2 (4 bytes in 16-bit elements) when it is built, after every rank
has its weights. Stage 3 does not read the key (run on 0.19.8).

## Example
```yaml
zero:
  stage: 2
  allgather_bucket_size: 499999999
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
    "ZR004",
    "odd-allgather-bucket",
    upstream="asserts",
    cites=(
        Cite(
            "runtime/zero/stage_1_and_2.py", "allgather_bucket_size must be a multiple of nccl_start_alignment_factor"
        ),
    ),
    when=lambda ctx: ctx.stage in (1, 2),
)
def check(ctx: Context) -> Iterator[Finding]:
    """Stages 1 and 2 take even sizes."""
    size = ctx.ds("zero_optimization.allgather_bucket_size", 0)
    if size % 2 == 0:
        return
    yield ctx.finding(
        f"{ctx.key('zero.allgather_bucket_size')} is {size}, DeepSpeed wants a multiple of 2",
        "zero.allgather_bucket_size",
        label="odd",
        related=[("zero.stage", "read at stages 1 and 2")],
        fix=_fix(ctx, size),
    )


def _fix(ctx: Context, size: int) -> Fix:
    """ZenFlow alone uses it (ZR024)."""
    key = ctx.key("zero.allgather_bucket_size")
    if ctx.ds("zero_optimization.zenflow"):
        return Fix(f"set {key} to {size + 1}", {"zero.allgather_bucket_size": size + 1}, safe=True)
    return Fix(f"remove {key}: it decides nothing", {"zero.allgather_bucket_size": None}, safe=True)
