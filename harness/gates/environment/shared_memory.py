"""Too little shared memory on a host.

## What it checks
`/dev/shm` has room on every host: 66 MiB a rank that runs on the CPU, 64 MiB a rank otherwise.

## Why it fails
Ranks of one host talk through it, and data workers too. When it is full they are killed by SIGBUS; containers get 64
MiB unless they ask for more.

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
worker-1: {shm: 67108864}
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

_PER_RANK = 66 * 2**20


@gate(
    "EN049",
    "small-shared-memory",
    upstream="raises",
    needs=("the hosts' answers", "hosts"),
    unseen="needs several hosts",
)
def check(ctx: Context) -> Iterator[Finding]:
    """A small tmpfs."""
    survey = ctx.survey
    small = [h for h in survey.reachable_hosts if h.shm is not None and h.shm < h.slots * _PER_RANK] if survey else []
    if small:
        least = min(small, key=lambda host: host.shm or 0)
        yield ctx.finding(
            f"`/dev/shm` of {format_hosts(small)} has {format_bytes(least.shm or 0)} free for {least.slots} ranks",
            "launch.hostfile",
            notes=["ranks that find it full are killed by SIGBUS"],
            fix=Fix("give the container more, such as docker run --shm-size=8g"),
            severity="warning",
        )
