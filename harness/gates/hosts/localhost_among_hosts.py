"""`localhost` among several hosts.

## What it checks
A hostfile of two or more hosts names none of them `localhost` or a loopback address.

## Why it fails
Every machine calls itself `localhost`. DeepSpeed asks the first host for its address and tells it to all of them, and
pdsh starts ranks on whatever machine the launch was given on: it works from that one machine at best, and a name and
`localhost` for the same machine put two sets of ranks there.

## Example
```yaml
zero:
  stage: 2
```
```hostfile
localhost slots=4
worker-1 slots=4
```

## Use instead
```yaml
zero:
  stage: 2
```
```hostfile
worker-0 slots=4
worker-1 slots=4
```
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.findings import Finding, Fix
from harness.gates.registry import Context, gate


@gate("HO009", "localhost-among-several-hosts", upstream="silent", needs=("hosts",), unseen="needs several hosts")
def check(ctx: Context) -> Iterator[Finding]:
    """A name that means another machine everywhere."""
    hosts = ctx.run.cluster.hosts if ctx.run.cluster else ()
    local = next((h.name for h in hosts if h.name.lower() in ("localhost", "::1") or h.name.startswith("127.")), None)
    if local is None or len(hosts) < 2:
        return
    yield ctx.finding(
        f"`{local}` is another machine on each of {len(hosts)} hosts",
        "launch.hostfile",
        notes=["it works at best from the machine that is meant"],
        fix=Fix("write the name under which the others reach it", effect="the same ranks from any machine"),
        severity="warning",
    )
