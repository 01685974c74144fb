"""Hosts with different numbers of slots.

## What it checks
Every line of the hostfile has the same `slots`.

## Why it fails
Nothing fails with DeepSpeed's own launcher: ranks are numbered in the order of the file and the world is the sum. But
data is dealt out a rank, so that the larger hosts work and the smaller wait at every collective; ZeRO++'s second
partition and `--launcher openmpi`, `mpich`, `impi` and `slurm` assume equal hosts, and refuse or misplace ranks
otherwise.

## Example
```yaml
zero:
  stage: 2
```
```hostfile
worker-0 slots=8
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


@gate("HO007", "hosts-with-unequal-slots", upstream="silent", needs=("hosts",), unseen="needs several hosts")
def check(ctx: Context) -> Iterator[Finding]:
    """Equal hosts wait less."""
    slots = ctx.slots or ()
    if len(set(slots)) < 2:
        return
    few = min(slots)
    hosts = ctx.run.cluster.hosts if ctx.run.cluster else ()
    small = next(host for host in hosts if host.slots == few)
    large = next(host for host in hosts if host.slots == max(slots))
    yield ctx.finding(
        f"host `{large.name}` has {large.slots} slots, `{small.name}` has {small.slots}",
        "launch.hostfile",
        notes=["ranks are numbered in the order of the hostfile; MPI and slurm launchers want equal hosts"],
        fix=Fix(f"give every host {few} slots in the hostfile", effect="fewer ranks"),
        severity="warning",
    )
