"""A host whose own key is unknown or another one than before.

## What it checks
The key that each host shows is the one in `known_hosts`.

## Why it fails
ssh refuses to connect when it cannot ask. A key that changed is that of a machine that was set up anew under an old
name, or of somebody in between.

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
worker-1: {state: host key, words: Host key verification failed}
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
    "HO014",
    "unknown-or-changed-host-key",
    upstream="hangs",
    needs=("the hosts' answers", "hosts"),
    unseen="needs several hosts",
)
def check(ctx: Context) -> Iterator[Finding]:
    """Somebody else under this name."""
    survey = ctx.survey
    lost = [host for host in survey.hosts if host.state == "host key"] if survey else []
    if not lost:
        return
    yield ctx.finding(
        f"the host key of {format_hosts(lost)} is not the known one",
        "launch.hostfile",
        notes=[f"`{host.name}`: {host.words or 'ssh said nothing'}" for host in lost[:8]],
        fix=Fix("if the machine was set up anew: ssh-keygen -R HOST, then `ssh HOST` once and compare the fingerprint"),
    )
