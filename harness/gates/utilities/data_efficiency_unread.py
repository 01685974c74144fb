"""Data efficiency asked of a loop with its own data loader.

## What it checks
`data_efficiency.enabled` in a run spec.

## Why it fails
Curriculum and dynamic batching live in the data loader that DeepSpeed makes when `training_data` is handed to
`deepspeed.initialize`; without it nothing changes (run on 0.19.8). The harness brings its own loader.

## Example
```yaml
deepspeed:
  data_efficiency:
    enabled: true
    seed: 7
```

## Use instead
```yaml
data:
  shuffle: true
```
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.findings import Finding, Fix
from harness.gates.registry import Cite, Context, gate


@gate(
    "UT005",
    "data-efficiency-that-is-not-read",
    upstream="silent",
    cites=(Cite("runtime/engine.py", "def data_efficiency_enabled(self):"),),
    needs=("a run spec",),
    when=lambda ctx: ctx.has_key("data_efficiency"),
)
def check(ctx: Context) -> Iterator[Finding]:
    """It is the loader's business."""
    if ctx.ds("data_efficiency.enabled") is not True:
        return
    key = ctx.spec_key("data_efficiency")
    yield ctx.finding(
        f"{ctx.key(key)} works in DeepSpeed's own data loader, which the harness does not use",
        key,
        severity="warning",
        of_key=True,
        label="has no effect",
        fix=Fix(f"remove {ctx.key(key)}", {key: None}, effect="the same, without the block and its paths"),
    )
