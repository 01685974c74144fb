"""Ranks bound to cores on a host without numactl.

## What it checks
With `launch.bind_cores_to_rank`, every host has the program numactl.

## Why it fails
DeepSpeed's launcher starts each rank on a host by `numactl -C ...`. Where that is missing no rank starts, and those of
the other hosts wait for them.

## Example
```yaml
launch:
  bind_cores_to_rank: true
```
```hostfile
worker-0 slots=8
worker-1 slots=8
```
```probe
worker-1: {numactl: false}
```

## Use instead
```yaml
launch:
  bind_cores_to_rank: true
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
from harness.gates.registry import Cite, Context, gate


@gate(
    "EN052",
    "no-numactl-there",
    upstream="raises",
    cites=(Cite("utils/numa.py", "get_numactl_cmd"),),
    needs=("the hosts' answers", "hosts"),
    unseen="needs several hosts",
)
def check(ctx: Context) -> Iterator[Finding]:
    """Its ranks cannot be started so."""
    lacking = [host for host in ctx.survey.reachable_hosts if host.numactl is False] if ctx.survey else []
    if lacking:
        yield ctx.finding(
            f"{format_hosts(lacking)} has no numactl, through which ranks are bound to cores",
            "launch.bind_cores_to_rank",
            fix=Fix("install it there: apt install numactl"),
        )
