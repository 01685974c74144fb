"""A run spec that names no training data.

## What it checks
`data.train` is given.

## Why it fails
There is nothing to train on.

## Example
```yaml
data:
  max_length: 1024
```

## Use instead
```yaml
data:
  train: corpus/*.txt
```
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.findings import Finding, Fix
from harness.gates.registry import Context, gate


@gate("MD002", "no-training-data", upstream="raises", needs=("a run spec",))
def check(ctx: Context) -> Iterator[Finding]:
    """Some data."""
    if ctx.run.spec.data.train or ctx.run.spec.plugins.file:  # whose `load_documents` may bring the data
        return
    yield ctx.finding(
        "`data.train` is not given",
        "data.train",
        fix=Fix(
            "set `data.train` to files, a glob, a Hub dataset or `builtin:python-docs`",
            {"data.train": "builtin:python-docs"},
            effect="decides what is trained on",
        ),
    )
