"""One host under two spellings.

## What it checks
No two hosts of the hostfile differ only in upper and lower case.

## Why it fails
Names of hosts do not care about case, DeepSpeed does: it counts both lines into the world and starts both sets of
ranks on the same machine, where they share its devices (run on 0.19.8; the same spelling twice is refused).

## Example
```yaml
zero:
  stage: 2
```
```hostfile
worker-0 slots=4
Worker-0 slots=4
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
from harness.gates.registry import Cite, Context, gate


@gate(
    "HO008",
    "one-host-in-two-spellings",
    upstream="silent",
    cites=(Cite("launcher/runner.py", "Hostfile contains multiple entries for"),),
    needs=("hosts",),
    unseen="needs several hosts",
)
def check(ctx: Context) -> Iterator[Finding]:
    """DNS does not care about case."""
    seen: dict[str, str] = {}
    for host in ctx.run.cluster.hosts if ctx.run.cluster else ():
        first = seen.setdefault(host.name.lower(), host.name)
        if first == host.name:
            continue
        yield ctx.finding(
            f"`{first}` and `{host.name}` are one host to the network, and two to DeepSpeed",
            "launch.hostfile",
            notes=["both sets of ranks start on the same machine and share its devices"],
            fix=Fix("keep one line in the hostfile", effect="one set of ranks on that machine"),
        )
