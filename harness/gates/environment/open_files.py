"""A low limit on open files.

## What it checks
A process on every host may have 256 files open and 4 more for each rank of the run.

## Why it fails
Every rank holds connections to the others, one or more for each group of ranks that it is in. When the limit is
reached, the next connection fails: `Too many open files`.

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
worker-1: {nofile: 128}
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
    "EN051",
    "few-open-files",
    upstream="raises",
    needs=("the hosts' answers", "hosts"),
    unseen="needs several hosts",
)
def check(ctx: Context) -> Iterator[Finding]:
    """Connections are files."""
    survey = ctx.survey
    need = 256 + 4 * (ctx.world_size or 0)
    few = [h for h in survey.reachable_hosts if h.nofile is not None and h.nofile < need] if survey else []
    if few:
        yield ctx.finding(
            f"a process on {format_hosts(few)} may have {min(h.nofile or 0 for h in few)} files open, "
            f"{need} are wanted",
            "launch.hostfile",
            notes=["every connection between ranks is one"],
            fix=Fix("raise `nofile` in /etc/security/limits.conf there"),
            severity="warning",
        )
