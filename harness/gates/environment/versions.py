"""Hosts with different versions of what trains.

## What it checks
Python and the packages `deepspeed`, `torch`, `transformers`, `accelerate` and `safetensors` have the same version on
every host.

## Why it fails
Ranks of different releases disagree about collectives, formats and defaults: they hang, or train different things and
average them.

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
worker-1: {packages: {deepspeed: 0.18.3}}
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
from typing import TYPE_CHECKING

from harness.findings import Finding, Fix
from harness.gates.host_names import format_hosts
from harness.gates.registry import Context, gate

if TYPE_CHECKING:
    from harness.hostinfo.host_survey import HostFacts


def _versions(host: HostFacts) -> dict[str, str]:
    return {"Python": host.python} | {name: version or "none" for name, version in host.packages.items()}


@gate(
    "EN040",
    "versions-differ",
    upstream="silent",
    needs=("the hosts' answers", "hosts"),
    unseen="needs several hosts",
)
def check(ctx: Context) -> Iterator[Finding]:
    """The odd one out."""
    hosts = ctx.survey.reachable_hosts if ctx.survey else ()
    for what in _versions(hosts[0]) if hosts else ():
        by_version = Counter(_versions(host)[what] for host in hosts)
        usual = by_version.most_common(1)[0][0]
        for version in sorted(set(by_version) - {usual}):
            odd = [host for host in hosts if _versions(host)[what] == version]
            yield ctx.finding(
                f"{format_hosts(odd)} has {what} {version}, {by_version[usual]} of {len(hosts)} hosts have {usual}",
                "launch.hostfile",
                notes=["ranks of different releases hang, or train different things"],
                fix=Fix("install the same environment on every host, or on a disk that they share"),
            )
