"""A curriculum that does not say what is difficult.

## What it checks
`data_efficiency.data_sampling.curriculum_learning.enabled: true` without `curriculum_metrics`, or with a metric that
lacks `min_difficulty`, `max_difficulty` or `schedule_type`.

## Why it fails
DeepSpeed asserts the first while it reads the file, also where an outer switch is off, and the second when its own
data loader is built (run on 0.19.8). Without that loader, which needs `training_data`, the metrics have no effect: a
warning.

## Example
```json
{
  "train_micro_batch_size_per_gpu": 1,
  "data_efficiency": {
    "enabled": true,
    "data_sampling": {"enabled": true, "curriculum_learning": {"enabled": true}}
  }
}
```

## Use instead
```json
{
  "train_micro_batch_size_per_gpu": 1,
  "data_efficiency": {
    "enabled": true,
    "data_sampling": {"enabled": true, "curriculum_learning": {"enabled": false}}
  }
}
```
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.findings import Finding, Fix
from harness.gates.registry import Cite, Context, gate

_NEEDED = ("min_difficulty", "max_difficulty", "schedule_type")


@gate(
    "UT008",
    "curriculum-without-metrics",
    upstream="asserts",
    cites=(Cite("runtime/data_pipeline/config.py", "must be specified"),),
    when=lambda ctx: ctx.has_key("data_efficiency.data_sampling.curriculum_learning"),
)
def check(ctx: Context) -> Iterator[Finding]:
    """What is difficult, and how it grows."""
    block = "data_efficiency.data_sampling.curriculum_learning"
    if not ctx.is_enabled(block):
        return
    key = ctx.spec_key(f"{block}.enabled")
    fix = Fix("complete the block, or switch the curriculum off", {key: False}, effect="trains without a curriculum")
    metrics = ctx.ds(f"{block}.curriculum_metrics")
    if metrics is None:
        yield ctx.finding(f"{ctx.key(key)} is true and no `curriculum_metrics` are given", key, fix=fix)
        return
    for name, metric in metrics.items() if isinstance(metrics, dict) else ():
        lacks = [n for n in _NEEDED if isinstance(metric, dict) and n not in metric]
        if lacks and ctx.is_enabled("data_efficiency"):
            yield ctx.finding(
                f"the curriculum's metric `{name}` lacks {', '.join(f'`{n}`' for n in lacks)}",
                ctx.spec_key(f"{block}.curriculum_metrics.{name}"),
                of_key=True,
                severity="warning",
                fix=fix,
            )
