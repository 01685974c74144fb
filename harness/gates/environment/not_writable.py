"""A folder of the run that a host cannot write.

## What it checks
Every host may write the folders that its ranks write: the run directory and, with NVMe offload, `nvme_path`.

## Why it fails
The ranks there fail once they write: when they say that they start, or after minutes, with the first parameters that
are swapped.

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
worker-1: {folders: {launch.output_dir: {path: /runs, writable: false}}}
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


@gate(
    "EN043",
    "folder-not-writable",
    upstream="raises",
    needs=("the hosts' answers", "hosts"),
    unseen="needs several hosts",
)
def check(ctx: Context) -> Iterator[Finding]:
    """Not allowed there."""
    hosts = ctx.survey.reachable_hosts if ctx.survey else ()
    for key in dict.fromkeys(key for host in hosts for key in host.folders):
        closed = [host for host in hosts if key in host.folders and not host.folders[key].writable]
        if closed:
            path = closed[0].folders[key].path
            yield ctx.finding(
                f"{format_hosts(closed)} cannot write to `{path}`",
                key,
                fix=Fix("give the user of the run the right to write there"),
            )
