"""Hosts whose accelerators torch cannot use.

## What it checks
Where a host has NVIDIA devices, torch there can use as many as the host has ranks. `harness preflight` asks torch on
every host with devices, in a process of its own, unless DS_ACCELERATOR=cpu says that the CPU is meant.

## Why it fails
torch is a build without CUDA, the driver is older than the CUDA that torch was built for, or the container lets
programs see the devices without computing on them. DeepSpeed asks torch, takes the CPU where torch has no device, and
says so in one warning of its log. Ranks there have another communication backend than those of the other hosts.

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
worker-1: {torch: {version: 2.13.0+cpu}}
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
from typing import TYPE_CHECKING

from harness.findings import Finding, Fix
from harness.gates.host_names import format_hosts
from harness.gates.registry import Cite, Context, gate
from harness.hostinfo.torch_devices import TorchProblem, find_torch_problem, format_device_names

if TYPE_CHECKING:
    from harness.hostinfo.host_survey import HostFacts


@gate(
    "EN054",
    "torch-cannot-use-devices",
    upstream="silent",
    cites=(Cite("accelerator/real_accelerator.py", "Setting accelerator to CPU"),),
    needs=("the hosts' answers", "hosts"),
    unseen="needs several hosts with CUDA",
)
def check(ctx: Context) -> Iterator[Finding]:
    """One finding for all hosts with the same trouble."""
    found: dict[TorchProblem, list[HostFacts]] = {}
    for host in ctx.survey.reachable_hosts if ctx.survey else ():
        wanted = min(host.slots, len(host.accelerators))
        told = find_torch_problem(host.torch, wanted) if host.torch is not None else None
        if told is not None:
            found.setdefault(told, []).append(host)
    for told, hosts in found.items():
        yield ctx.finding(
            f"on {format_hosts(hosts)} {told.reason}",
            "launch.hostfile",
            notes=[f"{format_hosts(hosts[:1])} has {format_device_names(hosts[0].accelerators)}; {told.consequence}"],
            fix=Fix(told.fix),
            severity="error" if told.certain else "warning",
        )
