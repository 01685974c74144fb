"""A mixture in which only some sources have a weight.

## What it checks
Either all sources of `data.train` have a `weight`, or none has.

## Why it fails
Weights are shares relative to each other. A source without one has no share: it would have to be all or nothing.

## Example
```yaml
data:
  train: [{path: chats.jsonl, weight: 0.3}, {path: code.jsonl}]
```

## Use instead
```yaml
data:
  train:
    - path: chats.jsonl
      weight: 0.3
    - path: code.jsonl
      weight: 0.7
```
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.findings import Finding, Fix
from harness.gates.registry import Context, gate


@gate("MD019", "weights-of-some-sources", upstream="silent", needs=("a run spec",))
def check(ctx: Context) -> Iterator[Finding]:
    """All or none."""
    sources = ctx.run.spec.data.train or ()
    without = [i for i, source in enumerate(sources) if source.weight is None]
    if not without or len(without) == len(sources):
        return
    names = ", ".join(f"`{sources[i].path}`" for i in without[:3])
    yield ctx.finding(
        f"{names} {'has' if len(without) == 1 else 'have'} no `weight`, other sources of `data.train` have one",
        f"data.train.{without[0]}",
        fix=Fix(
            "give every source a `weight`, or none",
            {"data.train": [source.model_dump(exclude_unset=True, exclude={"weight"}) for source in sources]},
            effect="trains on each record once an epoch",
        ),
    )
