"""More slots than a host has accelerators.

## What it checks
No host has more `slots` than accelerators, where any host has one.

## Why it fails
DeepSpeed starts a rank for each slot. Those without a device fail once CUDA is touched, with `invalid device
ordinal`, and the others wait for them.

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
worker-1: {accelerators: [NVIDIA H100, NVIDIA H100]}
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
    "HO017",
    "more-slots-than-devices",
    upstream="raises",
    needs=("the hosts' answers", "hosts"),
    unseen="needs several hosts with CUDA",
)
def check(ctx: Context) -> Iterator[Finding]:
    """Ranks without a device."""
    survey = ctx.survey
    few = (
        [h for h in survey.reachable_hosts if len(h.accelerators) < h.slots]
        if survey and survey.has_accelerators
        else []
    )
    for host in few:
        yield ctx.finding(
            f"{format_hosts([host])} has {host.slots} slots and {len(host.accelerators)} accelerators",
            "launch.hostfile",
            notes=["the ranks beyond them fail with `invalid device ordinal` once the others wait for them"],
            fix=Fix(
                f"write `slots={len(host.accelerators)}` there" if host.accelerators else "take it out of the hostfile"
            ),
        )
