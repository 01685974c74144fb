"""A sub-group size of zero.

## What it checks
`zero.sub_group_size: 0` at stage 3.

## Why it fails
It does not mean no sub-groups: every parameter becomes a sub-group of its own, and the optimizer is called once for
each (run on 0.19.8: same losses, slow).

## Example
```yaml
zero:
  stage: 3
  sub_group_size: 0
```

## Use instead
```yaml
zero:
  stage: 3
  sub_group_size: 1000000000
```
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.findings import Finding, Fix
from harness.gates.registry import Cite, Context, gate


@gate(
    "ZR015",
    "sub-groups-of-one-parameter",
    upstream="silent",
    cites=(Cite("runtime/zero/stage3.py", "local_sub_group_size >= sub_group_size"),),
    when=lambda ctx: ctx.stage == 3,
)
def check(ctx: Context) -> Iterator[Finding]:
    """Zero is not `off`."""
    if ctx.ds("zero_optimization.sub_group_size", 1) != 0:
        return
    yield ctx.finding(
        f"{ctx.key('zero.sub_group_size')} is 0, which steps the optimizer once for each parameter",
        "zero.sub_group_size",
        label="one parameter a sub-group",
        fix=Fix(
            f"set {ctx.key('zero.sub_group_size')} to 1000000000, DeepSpeed's default",
            {"zero.sub_group_size": 1_000_000_000},
            effect="the same steps, faster",
        ),
        severity="warning",
    )
