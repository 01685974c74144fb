"""A gate that is ignored without a reason.

## What it checks
Each entry of `ignore` has a text that is not empty.

## Why it fails
An `ignore` is read again when the run is judged, months later and by somebody else. Without a reason nobody knows
whether it still holds.

## Example
```yaml
checkpoint:
  save_at_end: false
ignore:
  CK009: ""
```

## Use instead
```yaml
checkpoint:
  save_at_end: false
ignore:
  CK009: a measurement of speed
```
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.findings import Finding, Fix
from harness.gates.registry import Context, gate


@gate("MD015", "ignore-without-a-reason", upstream="silent", needs=("a run spec",))
def check(ctx: Context) -> Iterator[Finding]:
    """Say why."""
    for name, reason in ctx.run.spec.ignore.items():
        if reason.strip():
            continue
        key = f"ignore.{name}"
        yield ctx.finding(
            f"{ctx.key(key)} gives no reason",
            key,
            severity="warning",
            notes=["whoever reads it later cannot tell whether it still holds"],
            fix=Fix("write why", {key: "known"}, effect="a placeholder for the reason"),
        )
