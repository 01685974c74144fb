"""A host where the probe does not run.

## What it checks
The Python that launches is at the same path on every host and runs the probe.

## Why it fails
DeepSpeed starts the ranks everywhere with the path of the Python that launches (`sys.executable`). Where it is not,
the shell there says `not found` and the other ranks wait.

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
worker-1: {state: no probe, words: 'bash: line 1: /opt/venv/bin/python: No such file or directory'}
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
    "HO016",
    "host-without-this-python",
    upstream="hangs",
    needs=("the hosts' answers", "hosts"),
    unseen="needs several hosts",
)
def check(ctx: Context) -> Iterator[Finding]:
    """It answers something else."""
    survey = ctx.survey
    lost = [host for host in survey.hosts if host.state == "no probe"] if survey else []
    if not lost:
        return
    yield ctx.finding(
        f"the probe does not run on {format_hosts(lost)}",
        "launch.hostfile",
        notes=[f"`{host.name}`: {host.words or 'ssh said nothing'}" for host in lost[:8]],
        fix=Fix("install the same environment at the same path on every host, or on a disk that they share"),
    )
