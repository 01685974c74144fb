"""A source that gives nothing to the mixture.

## What it checks
No weight of `data.train` is 0.

## Why it fails
A source of weight 0 is left out: nothing of it is trained on.

## Example
```yaml
data:
  train: [{path: chats.jsonl, weight: 1}, {path: code.jsonl, weight: 0}]
```

## Use instead
```yaml
data:
  train:
    - path: chats.jsonl
```
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.findings import Finding, Fix
from harness.gates.registry import Context, gate


@gate("MD018", "source-of-weight-0", upstream="silent", needs=("a run spec",))
def check(ctx: Context) -> Iterator[Finding]:
    """Every source counts; a mixture of nothing is none."""
    sources = ctx.run.spec.data.train or ()
    empty = [i for i, source in enumerate(sources) if source.weight == 0]
    kept = [source.model_dump(exclude_unset=True) for source in sources if source.weight != 0]
    for i in empty:
        key = f"data.train.{i}.weight"
        nothing = len(empty) == len(sources)
        yield ctx.finding(
            f"`{sources[i].path}` has weight 0: nothing of it is trained on",
            key,
            severity="error" if nothing else "warning",
            fix=Fix(
                "remove the source, or set a weight above 0",
                {"data.train": kept} if kept else {},
                effect="trains on the same",
            ),
        )
