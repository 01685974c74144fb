"""A disk without room for the checkpoints.

## What it checks
Where the run directory is, every host sees room for two checkpoints (the one that is kept and the one that is
written), and for 256 MiB at least.

## Why it fails
Training goes on until the first save, which fails; DeepSpeed leaves a torn checkpoint, the harness removes it and
ends the run.

## Example
```yaml
zero:
  stage: 2
```
```hostfile
worker-0 slots=8
worker-1 slots=8
```
```probe
worker-1: {folders: {launch.output_dir: {path: /runs, free: 1000000}}}
```

## Use instead
```yaml
zero:
  stage: 2
```
```hostfile
worker-0 slots=8
worker-1 slots=8
```
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.findings import Finding, Fix
from harness.gates.host_names import format_hosts
from harness.gates.registry import Context, gate
from harness.units import format_bytes

_LEAST = 256 * 2**20


@gate(
    "EN044",
    "disk-too-full",
    upstream="raises",
    needs=("the hosts' answers", "hosts"),
    unseen="needs several hosts",
)
def check(ctx: Context) -> Iterator[Finding]:
    """No room left."""
    survey = ctx.survey
    need = max(_LEAST, 2 * (ctx.plan.checkpoint_cost.bytes if ctx.plan.checkpoint_cost else 0))
    key = "launch.output_dir"
    found = [(host, host.folders[key]) for host in (survey.reachable_hosts if survey else ()) if key in host.folders]
    full = [(host, folder) for host, folder in found if folder.free is not None and folder.free < need]
    if full:
        _, folder = min(full, key=lambda pair: pair[1].free or 0)
        yield ctx.finding(
            f"`{folder.path}` has {format_bytes(folder.free or 0)} free on {format_hosts(h for h, _ in full)}, "
            f"two checkpoints take {format_bytes(need)}",
            key,
            fix=Fix("make room there, or set `launch.output_dir` to a larger disk"),
        )
