"""A host that does not answer in time.

## What it checks
Every host answers the probe within its time limit.

## Why it fails
A host that is swapping, whose file server hangs or whose login scripts wait for something holds up all ranks in every
step, if its ranks start at all.

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
worker-1: {state: no answer in time, words: nothing within 20 s}
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
    "HO015",
    "no-answer-in-time",
    upstream="hangs",
    needs=("the hosts' answers", "hosts"),
    unseen="needs several hosts",
)
def check(ctx: Context) -> Iterator[Finding]:
    """Still waiting."""
    survey = ctx.survey
    lost = [host for host in survey.hosts if host.state == "no answer in time"] if survey else []
    if not lost:
        return
    yield ctx.finding(
        f"{format_hosts(lost)} does not answer in time",
        "launch.hostfile",
        notes=[f"`{host.name}`: {host.words or 'ssh said nothing'}" for host in lost[:8]],
        fix=Fix(
            "log in there and see what it waits for, take it out of the hostfile, or give it longer with `--timeout`"
        ),
    )
