"""Data sampling enabled inside a block that is off.

## What it checks
`data_efficiency.data_sampling.enabled`, or one of its parts, while `data_efficiency.enabled` or an outer switch is
not true.

## Why it fails
DeepSpeed asks the outer switch first: the curriculum is off, whatever the inner ones say (run on 0.19.8).

## Example
```json
{
  "train_micro_batch_size_per_gpu": 1,
  "data_efficiency": {
    "data_sampling": {"enabled": true, "num_workers": 2}
  }
}
```

## Use instead
```json
{
  "train_micro_batch_size_per_gpu": 1,
  "data_efficiency": {
    "enabled": true,
    "data_sampling": {"enabled": true, "num_workers": 2}
  }
}
```
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.findings import Finding, Fix
from harness.gates.registry import Cite, Context, gate


@gate(
    "UT006",
    "inner-switch-without-the-outer",
    upstream="silent",
    cites=(Cite("runtime/data_pipeline/constants.py", "DATA_EFFICIENCY_ENABLED_DEFAULT = False"),),
    when=lambda ctx: ctx.has_key("data_efficiency.data_sampling"),
)
def check(ctx: Context) -> Iterator[Finding]:
    """From the outside in."""
    outer = ("data_efficiency", "data_efficiency.data_sampling")
    for inner, depth in (
        ("data_efficiency.data_sampling", 1),
        ("data_efficiency.data_sampling.curriculum_learning", 2),
        ("data_efficiency.data_sampling.dynamic_batching", 2),
    ):
        off = [block for block in outer[:depth] if not ctx.ds(f"{block}.enabled")]
        if not ctx.is_enabled(inner) or not off:
            continue
        key = ctx.spec_key(f"{inner}.enabled")
        yield ctx.finding(
            f"{ctx.key(key)} is true, but {ctx.key(ctx.spec_key(f'{off[0]}.enabled'))} is not",
            key,
            severity="warning",
            label="has no effect",
            fix=Fix(
                f"set {ctx.key(ctx.spec_key(f'{off[0]}.enabled'))} to true, or this to false", {key: False}, safe=True
            ),
        )
        return
