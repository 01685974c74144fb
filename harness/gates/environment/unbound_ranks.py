"""An optimizer on the CPUs of hosts with several NUMA nodes, and ranks that may run on any core.

## What it checks
Where the optimizer runs on the CPU and a host has more than one NUMA node, the ranks are bound to cores.

## Why it fails
Nothing fails. CPU Adam waits for memory: a thread that the kernel moves to another socket than its rank's weights
reads them through the link between the sockets. Bound, each rank keeps to the cores and, where they lie in one node,
to the memory of its share (`deepspeed --bind_cores_to_rank`; read in `utils/numa.py`, not measured here).

## Example
```yaml
zero:
  stage: 3
  offload_optimizer: {device: cpu}
```
```hostfile
worker-0 slots=8
worker-1 slots=8
```
```probe
worker-0: {numa_nodes: 2}
worker-1: {numa_nodes: 2}
```

## Use instead
```yaml
zero:
  stage: 3
  offload_optimizer: {device: cpu}
launch:
  bind_cores_to_rank: true
```
```hostfile
worker-0 slots=8
worker-1 slots=8
```
```probe
worker-0: {numa_nodes: 2, numactl: true}
worker-1: {numa_nodes: 2, numactl: true}
```
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.findings import Finding, Fix
from harness.gates.host_names import format_hosts
from harness.gates.registry import Cite, Context, gate

_KEY = "launch.bind_cores_to_rank"


@gate(
    "EN053",
    "ranks-on-any-core",
    upstream="silent",
    cites=(Cite("utils/numa.py", "get_numactl_cmd"),),
    needs=("the hosts' answers", "hosts"),
    unseen="needs several hosts",
)
def check(ctx: Context) -> Iterator[Finding]:
    """Only a hint: which is faster is to be measured there."""
    launch = ctx.run.spec.launch
    several = [host for host in ctx.survey.reachable_hosts if host.numa_nodes > 1] if ctx.survey else []
    if (
        several
        and ctx.offload_device("offload_optimizer")
        and not launch.bind_cores_to_rank
        and launch.launcher == "pdsh"
    ):
        yield ctx.finding(
            f"{format_hosts(several)} has {several[0].numa_nodes} NUMA nodes, "
            f"and the optimizer's threads may run on any",
            _KEY,
            fix=Fix("try it with ranks bound to cores", {_KEY: True}, effect="each rank keeps to its own cores"),
            severity="info",
        )
