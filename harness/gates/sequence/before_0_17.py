"""Sequence parallelism on a release without it.

## What it checks
`parallel.sequence_parallel_size` above 1 on DeepSpeed 0.16.9 and older.

## Why it fails
The attention for Hugging Face models and the data loader adapter came with 0.17.0. Older releases have none of them
and make no groups from this key alone: every rank trains data parallel.

## Example
```yaml
parallel:
  sequence_parallel_size: 2
```

## Use instead
```yaml
zero:
  stage: 3
```
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.findings import Finding, Fix
from harness.gates.registry import Context, gate


@gate(
    "SQ010",
    "sequence-parallelism-before-0-17",
    upstream="silent",
    until="0.16.9",
    when=lambda ctx: (
        ctx.sequence_parallel_size > 1 and (ctx.run.kind == "spec" or not ctx.has_key("data_parallel_size"))
    ),
    unseen="needs an older DeepSpeed",
)
def check(ctx: Context) -> Iterator[Finding]:
    """It came with 0.17.0."""
    key = "parallel.sequence_parallel_size"
    yield ctx.finding(
        f"DeepSpeed {ctx.target.text} has no sequence parallelism for Hugging Face models",
        key,
        label="needs 0.17.0",
        fix=Fix(
            f"upgrade to DeepSpeed 0.17.0 or newer, or set {ctx.key(key)} to 1",
            {key: 1},
            effect="whole sequences on every rank",
        ),
    )
