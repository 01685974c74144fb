"""A utility block that is not switched on.

## What it checks
`tensorboard`, `wandb`, `csv_monitor`, `comet`, `flops_profiler`, `comms_logger` and `autotuning` blocks that set
something and have no `enabled`.

## Why it fails
`enabled` is false unless it is written. The block is accepted, and nothing is monitored or profiled (run on 0.19.8).

## Example
```yaml
deepspeed:
  csv_monitor:
    output_path: /shared/metrics
```

## Use instead
```yaml
deepspeed:
  csv_monitor:
    enabled: true
    output_path: /shared/metrics
```
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.findings import Finding, Fix
from harness.gates.registry import Cite, Context, gate

_MEANT = frozenset(("enabled", "enable", "Enabled", "enabeld", "is_enabled"))
"""The key, and misspellings of it, which are told as such."""
_BLOCKS = ("tensorboard", "wandb", "csv_monitor", "comet", "flops_profiler", "comms_logger", "autotuning")


_EFFECT = "the same as now, without the block"


@gate("UT001", "block-without-enabled", upstream="silent", cites=(Cite("monitor/config.py", "enabled: bool = False"),))
def check(ctx: Context) -> Iterator[Finding]:
    """Off by default."""
    for name in _BLOCKS:
        block = ctx.ds(name)
        if not isinstance(block, dict) or not block or _MEANT.intersection(block):
            continue
        key = ctx.spec_key(name)
        yield ctx.finding(
            f"{ctx.key(key)} has no `enabled: true`, so nothing in it is read",
            key,
            severity="warning",
            of_key=True,
            label="has no effect",
            fix=Fix(f"write `enabled: true` in it, or remove {ctx.key(key)}", {key: None}, effect=_EFFECT),
        )
