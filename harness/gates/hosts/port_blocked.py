"""A port of the first host that another host does not reach.

## What it checks
A connection from every host to the port of the rendezvous on the first host, and to another port there, comes about.

## Why it fails
ssh works, and a firewall lets nothing else through: ranks wait for the rendezvous until it times out after half an
hour. gloo and NCCL listen on ports that the kernel chooses, so that one open port is not enough.

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
links:
- {host: worker-1, address: 10.0.0.1, port: 29500, state: no answer}
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
    "HO019",
    "port-not-reached",
    upstream="hangs",
    needs=("the hosts' answers", "hosts"),
    unseen="needs several hosts",
)
def check(ctx: Context) -> Iterator[Finding]:
    """Something is in between."""
    survey = ctx.survey
    if survey is None:
        return
    tried: dict[tuple[str, bool], list[bool]] = {}
    for link in survey.links:
        tried.setdefault((link.host, link.port == survey.port), []).append(link.ok)
    for rendezvous in (True, False):
        cut = [host for (host, which), states in tried.items() if which is rendezvous and not any(states)]
        if not cut:
            continue
        port = f"port {survey.port}" if rendezvous else "a port that the kernel chose"
        why = next(x for x in survey.links if x.host == cut[0] and (x.port == survey.port) is rendezvous)
        yield ctx.finding(
            f"{format_hosts(cut)} cannot reach {port} of the first host, `{survey.hosts[0].name}`: {why.state}",
            "launch.hostfile",
            notes=[f"tried {why.address}", "gloo and NCCL use ports that the kernel chooses, on every host"],
            fix=Fix("open all ports between the hosts of a run"),
        )
        return
