"""Several networks between the hosts and no word which to use.

## What it checks
The hosts share one network, or `launch.env` says which interface is meant (`NCCL_SOCKET_IFNAME`,
`GLOO_SOCKET_IFNAME`).

## Why it fails
gloo takes the address that the host's own name resolves to, NCCL the first interface that it finds: on one host the
slow one, on another one that the others do not see. With one network that all share, the launch sets both variables
itself.

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
worker-0: {interfaces: [[eth0, 10.0.0.1/24], [ib0, 10.1.0.1/24]]}
worker-1: {interfaces: [[eth0, 10.0.0.2/24], [ib0, 10.1.0.2/24]]}
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
from harness.gates.registry import Context, gate

_VARIABLES = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME")


@gate(
    "HO020",
    "several-networks",
    upstream="silent",
    needs=("the hosts' answers", "hosts"),
    when=lambda ctx: not any(name in ctx.run.spec.launch.env for name in _VARIABLES),
    unseen="needs several hosts",
)
def check(ctx: Context) -> Iterator[Finding]:
    """Which of them."""
    survey = ctx.survey
    found = survey.shared_networks if survey else {}
    if len(found) < 2:
        return
    listed = ", ".join(f"{name or 'by several names'} ({network})" for network, name in found.items())
    choices = sorted({name for name in found.values() if name}) or ["eth0"]
    yield ctx.finding(
        f"the hosts share {len(found)} networks: {listed}",
        "launch.env",
        notes=["gloo and NCCL each choose for themselves, on every host"],
        fix=Fix(f"set `NCCL_SOCKET_IFNAME` and `GLOO_SOCKET_IFNAME` in `launch.env`, such as to {choices[-1]}"),
        severity="warning",
    )
