"""Two lines of the hostfile that are one machine.

## What it checks
Every line of the hostfile is another machine.

## Why it fails
Both lines start ranks on the same devices: they share memory and speed, or run out of it, and the plan of each host
is wrong.

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
worker-1: {machine: machine-of-worker-0}
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
    "HO022",
    "one-machine-twice",
    upstream="silent",
    needs=("the hosts' answers", "hosts"),
    unseen="needs several hosts",
)
def check(ctx: Context) -> Iterator[Finding]:
    """The same one again."""
    seen: dict[str, list[str]] = {}
    for host in ctx.survey.reachable_hosts if ctx.survey else ():
        seen.setdefault(host.machine, []).append(host.name)
    for same in seen.values():
        if len(same) > 1:
            yield ctx.finding(
                f"{format_hosts(same)} are one machine",
                "launch.hostfile",
                notes=["their ranks would share its devices and its memory"],
                fix=Fix("keep one of the lines, with the slots that the machine has"),
            )
