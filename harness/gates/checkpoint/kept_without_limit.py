"""Checkpoints that are to be kept where none is removed.

## What it checks
`checkpoint.keep_every_steps` or `checkpoint.keep_best` without `checkpoint.save_total_limit`.

## Why it fails
Both say which checkpoints stay beyond the newest few. Without a limit all stay, and the disk fills.

## Example
```yaml
checkpoint:
  save_steps: 5
  keep_every_steps: 10
```

## Use instead
```yaml
checkpoint:
  save_steps: 5
  save_total_limit: 2
  keep_every_steps: 10
```
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.findings import Finding, Fix
from harness.gates.registry import Context, gate


@gate("CK012", "kept-where-all-are-kept", upstream="silent", needs=("a run spec",))
def check(ctx: Context) -> Iterator[Finding]:
    """Each of the two by itself."""
    checkpoint = ctx.run.spec.checkpoint
    if checkpoint.save_total_limit is not None:
        return
    for name in ("keep_every_steps", "keep_best"):
        if not getattr(checkpoint, name):
            continue
        key = f"checkpoint.{name}"
        yield ctx.finding(
            f"{ctx.key(key)} is set, but without `checkpoint.save_total_limit` every checkpoint is kept",
            key,
            severity="warning",
            label="has no effect",
            fix=Fix(f"set `checkpoint.save_total_limit`, or remove {ctx.key(key)}", {key: None}, safe=True),
        )
