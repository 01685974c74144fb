"""A host whose clock is off.

## What it checks
No host's clock differs from that of the launching machine by more than 5 seconds.

## Why it fails
Training does not mind. But which rank failed first is told by the time that each writes down, files on a shared disk
look new or old, and tokens and certificates are refused.

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
worker-1: {skew: [61.2, 61.4]}
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

_MOST_SECONDS = 5.0


@gate(
    "HO023",
    "clock-off",
    upstream="silent",
    needs=("the hosts' answers", "hosts"),
    unseen="needs several hosts",
)
def check(ctx: Context) -> Iterator[Finding]:
    """What time is it."""
    survey = ctx.survey
    off = (
        [h for h in survey.reachable_hosts if h.skew[0] > _MOST_SECONDS or h.skew[1] < -_MOST_SECONDS] if survey else []
    )
    for host in off:
        ahead = host.skew[0] > 0
        seconds = host.skew[0] if ahead else -host.skew[1]
        yield ctx.finding(
            f"the clock of {format_hosts([host])} is {seconds:.0f} s {'ahead' if ahead else 'behind'}",
            "launch.hostfile",
            notes=["which rank failed first is told by the time that each wrote down"],
            fix=Fix("keep time on every host (chrony, systemd-timesyncd)"),
            severity="warning",
        )
