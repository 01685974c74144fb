"""The run is to be started again after a failure, and nothing is saved before its end.

## What it checks
`launch.max_restarts` above 0 without `checkpoint.save_steps`.

## Why it fails
A restart goes on from the last complete checkpoint of the run. Without one, each begins at the first step, and a run
that is longer than its machines last never ends.

## Example
```yaml
launch:
  max_restarts: 3
```

## Use instead
```yaml
launch:
  max_restarts: 3
checkpoint:
  save_steps: 5
```
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.findings import Finding, Fix
from harness.gates.registry import Context, gate


@gate("CK030", "restarts-without-saves", upstream="silent", needs=("a run spec",))
def check(ctx: Context) -> Iterator[Finding]:
    """Restarts have something to go on from."""
    spec = ctx.run.spec
    if spec.launch.max_restarts and spec.checkpoint.save_steps is None:
        key, often = "launch.max_restarts", max(1, (spec.train.max_steps or 1000) // 10)
        yield ctx.finding(
            f"{ctx.key(key)} starts from the first step each time: nothing is saved before the end",
            key,
            severity="warning",
            label="nothing to go on from",
            fix=Fix(
                f"set `checkpoint.save_steps` to as many steps as may be lost, such as {often}",
                {"checkpoint.save_steps": often},
                effect="a checkpoint so often",
            ),
        )
