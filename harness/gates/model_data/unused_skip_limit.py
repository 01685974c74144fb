"""A limit on bad records where none may be left out.

## What it checks
`data.max_bad_records` is written only with `data.on_bad_record: skip`.

## Why it fails
The first bad record ends the preparation, so that the limit is never reached.

## Example
```yaml
data:
  max_bad_records: 20
```

## Use instead
```yaml
data:
  on_bad_record: skip
  max_bad_records: 20
```
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.findings import Finding, Fix
from harness.gates.registry import Context, gate


@gate("MD022", "limit-without-skipping", upstream="silent", needs=("a run spec",))
def check(ctx: Context) -> Iterator[Finding]:
    """The limit is of those that are left out."""
    data = ctx.run.spec.data
    if "max_bad_records" not in data.model_fields_set or data.on_bad_record == "skip":
        return
    yield ctx.finding(
        "`data.max_bad_records` is not read, since `data.on_bad_record` is `stop`",
        "data.max_bad_records",
        severity="warning",
        fix=Fix("remove it, or set `data.on_bad_record: skip`", {"data.max_bad_records": None}, safe=True),
    )
