"""An option of DeepSpeed's data loader.

## What it checks
`dataloader_drop_last` in a run spec.

## Why it fails
Only the loader that DeepSpeed makes from `training_data` reads it. The harness brings its own, in which every batch
is full.

## Example
```yaml
deepspeed:
  dataloader_drop_last: true
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
    "UT016",
    "loader-option-that-is-not-read",
    upstream="silent",
    cites=(Cite("runtime/engine.py", "dataloader_drop_last=self.dataloader_drop_last(),"),),
    needs=("a run spec",),
)
def check(ctx: Context) -> Iterator[Finding]:
    """Every batch is full."""
    key = ctx.spec_key("dataloader_drop_last")
    if not ctx.has_key("dataloader_drop_last"):
        return
    yield ctx.finding(
        f"{ctx.key(key)} is read by DeepSpeed's own data loader, which the harness does not use",
        key,
        severity="warning",
        label="has no effect",
        fix=Fix(f"remove {ctx.key(key)}", {key: None}, safe=True),
    )
