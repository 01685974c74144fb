"""Grouping by length where all sequences have the same length, or where the order is fixed.

## What it checks
`data.group_by_length: true` is not written beside `data.packing` or `data.shuffle: false`.

## Why it fails
Packed sequences are all filled up to `data.max_length`, and without shuffling the order is that of the files. It would
have no effect.

## Example
```yaml
data:
  packing: true
  group_by_length: true
```

## Use instead
```yaml
data:
  packing: true
```
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.findings import Finding, Fix
from harness.gates.registry import Context, gate


@gate("MD023", "grouping-without-effect", upstream="silent", needs=("a run spec",))
def check(ctx: Context) -> Iterator[Finding]:
    """Uneven sequences in a free order."""
    data = ctx.run.spec.data
    if "group_by_length" not in data.model_fields_set or not data.group_by_length:
        return
    if not data.packing and data.shuffle:
        return
    other = "data.packing" if data.packing else "data.shuffle"
    yield ctx.finding(
        f"`data.group_by_length` has no effect with `{other}: {str(data.packing).lower()}`",
        "data.group_by_length",
        severity="warning",
        related=[(other, "this one decides")],
        fix=Fix("remove it", {"data.group_by_length": None}, safe=True),
    )
