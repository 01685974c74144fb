"""A host that refuses our ssh key.

## What it checks
Every host lets the user who launches in by key, without a password.

## Why it fails
DeepSpeed and pdsh cannot type a password: the ranks of this host never start and those of the others wait for them.

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
worker-1: {state: key refused, words: 'root@worker-1: Permission denied (publickey)'}
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
    "HO013",
    "ssh-key-refused",
    upstream="hangs",
    needs=("the hosts' answers", "hosts"),
    unseen="needs several hosts",
)
def check(ctx: Context) -> Iterator[Finding]:
    """The door is locked."""
    survey = ctx.survey
    lost = [host for host in survey.hosts if host.state == "key refused"] if survey else []
    if not lost:
        return
    yield ctx.finding(
        f"{format_hosts(lost)} refuses the ssh key",
        "launch.hostfile",
        notes=[f"`{host.name}`: {host.words or 'ssh said nothing'}" for host in lost[:8]],
        fix=Fix("put the public key into `~/.ssh/authorized_keys` there: ssh-copy-id HOST"),
    )
