"""Hosts with different code of the harness.

## What it checks
The package of the harness is the same, byte by byte, at the same path on every host.

## Why it fails
The launcher starts `harness/workers/train_worker.py` by the path that it has where the run is launched. A host without
it fails, one with another version may read the run directory otherwise.

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
worker-1: {code: another}
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

from collections import Counter
from collections.abc import Iterator

from harness.findings import Finding, Fix
from harness.gates.host_names import format_hosts
from harness.gates.registry import Context, gate


@gate(
    "EN041",
    "harness-differs",
    upstream="silent",
    needs=("the hosts' answers", "hosts"),
    unseen="needs several hosts",
)
def check(ctx: Context) -> Iterator[Finding]:
    """Another one there."""
    hosts = ctx.survey.reachable_hosts if ctx.survey else ()
    usual = Counter(host.code for host in hosts).most_common(1)[0][0] if hosts else None
    without = [host for host in hosts if host.code is None]
    other = [host for host in hosts if host.code is not None and host.code != usual]
    fix = Fix("install the same harness at the same path on every host, or on a disk that they share")
    if without:
        yield ctx.finding(
            f"the harness is not on {format_hosts(without)}, at the path that it has here", "launch.hostfile", fix=fix
        )
    if other:
        yield ctx.finding(
            f"the harness on {format_hosts(other)} is another one than on the other hosts", "launch.hostfile", fix=fix
        )
