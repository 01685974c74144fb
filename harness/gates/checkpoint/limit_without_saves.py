"""A limit on checkpoints where at most one is written.

## What it checks
`checkpoint.save_total_limit` without `checkpoint.save_steps`.

## Why it fails
The only checkpoint is the one at the end, so there is nothing to limit. It may be that `save_steps` was forgotten: a
run that dies before its last step has then saved nothing.

## Example
```yaml
checkpoint:
  save_total_limit: 2
```

## Use instead
```yaml
checkpoint:
  save_total_limit: 2
  save_steps: 5
```
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.findings import Finding, Fix
from harness.gates.registry import Context, gate


@gate("CK010", "save-limit-without-saves", upstream="silent", needs=("a run spec",))
def check(ctx: Context) -> Iterator[Finding]:
    """Forgotten `save_steps`, most often."""
    checkpoint = ctx.run.spec.checkpoint
    if checkpoint.save_total_limit is None or checkpoint.save_steps is not None:
        return
    key = "checkpoint.save_total_limit"
    yield ctx.finding(
        f"{ctx.key(key)} is {checkpoint.save_total_limit}, but without `checkpoint.save_steps` one is written",
        key,
        severity="warning",
        label="has no effect",
        notes=["a run that dies before its last step has saved nothing"],
        fix=Fix(f"set `checkpoint.save_steps`, or remove {ctx.key(key)}", {key: None}, safe=True),
    )
