"""A folder of run directories that is not shared.

## What it checks
A file made where the run directory will be is seen by every host.

## Why it fails
Ranks read their orders from the run directory, and write their state, their logs and the shards of each checkpoint
into it. On a host that has another folder of that name they find no orders; and a checkpoint of which every host
holds a part can be read by none.

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
worker-1: {sees_run: false}
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
    "EN042",
    "run-folder-not-shared",
    upstream="silent",
    needs=("the hosts' answers", "hosts"),
    unseen="needs several hosts",
)
def check(ctx: Context) -> Iterator[Finding]:
    """Everybody must see it."""
    survey = ctx.survey
    blind = [host for host in survey.reachable_hosts if not host.sees_run] if survey else []
    if not blind:
        return
    path = blind[0].folders["launch.output_dir"].path if "launch.output_dir" in blind[0].folders else "it"
    kinds = {host.folders["launch.output_dir"].filesystem for host in blind if "launch.output_dir" in host.folders}
    yield ctx.finding(
        f"{format_hosts(blind)} does not see what is written to `{path}` here",
        "launch.output_dir",
        notes=[f"there it is on {' or '.join(sorted(kinds)) or 'another disk'}"],
        fix=Fix("set `launch.output_dir` to a folder that all hosts share, such as one on NFS or Lustre"),
    )
