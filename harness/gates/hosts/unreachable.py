"""A host that ssh does not reach.

## What it checks
`ssh HOST` reaches every host of the hostfile from where the run is launched, without a question.

## Why it fails
DeepSpeed tests the first host of the file alone. With another one that is switched off or misspelt, pdsh starts the
ranks of all the others, and these wait half an hour for those that will never come.

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
worker-1: {state: unreachable, words: 'ssh: connect to host worker-1 port 22: No route to host'}
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
    "HO012",
    "host-not-reached",
    upstream="hangs",
    needs=("the hosts' answers", "hosts"),
    unseen="needs several hosts",
)
def check(ctx: Context) -> Iterator[Finding]:
    """Nobody home."""
    survey = ctx.survey
    lost = [host for host in survey.hosts if host.state == "unreachable"] if survey else []
    if not lost:
        return
    yield ctx.finding(
        f"{format_hosts(lost)} cannot be reached by ssh",
        "launch.hostfile",
        notes=[f"`{host.name}`: {host.words or 'ssh said nothing'}" for host in lost[:8]],
        fix=Fix(
            "see that the name is right and that the host runs and has an ssh server, or take it out of the hostfile"
        ),
    )
