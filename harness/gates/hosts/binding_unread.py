"""Ranks to be bound to cores by a launcher that does not do it.

## What it checks
`launch.bind_cores_to_rank` and `launch.bind_core_list` reach something that reads them.

## Why it fails
DeepSpeed binds ranks where its own `launcher/launch.py` starts them: on one machine and through pdsh. With `openmpi`
and `slurm` both options are taken and forgotten (read in `launcher/multinode_runner.py` of 0.19.8), and a list without
`bind_cores_to_rank` is read by nothing. A launcher that binds says how many threads a rank has, over an
OMP_NUM_THREADS of `launch.env` (run on 0.19.8).

## Example
```yaml
launch:
  launcher: slurm
  bind_cores_to_rank: true
```
```hostfile
worker-0 slots=8
worker-1 slots=8
```

## Use instead
```yaml
launch:
  bind_cores_to_rank: true
```
```hostfile
worker-0 slots=8
worker-1 slots=8
```
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.findings import Finding, Fix
from harness.gates.registry import Cite, Context, gate

_BIND, _LIST, _THREADS = "launch.bind_cores_to_rank", "launch.bind_core_list", "launch.env.OMP_NUM_THREADS"


@gate(
    "HO030",
    "binding-read-by-nothing",
    upstream="silent",
    cites=(Cite("launcher/multinode_runner.py", "bind_cores_to_rank"),),
    when=lambda ctx: ctx.run.spec.launch.bind_cores_to_rank or ctx.run.spec.launch.bind_core_list is not None,
    unseen="settled by the launcher, before there is an engine",
)
def check(ctx: Context) -> Iterator[Finding]:
    """Said, so that nobody believes that ranks are bound."""
    launch = ctx.run.spec.launch
    if not launch.bind_cores_to_rank:
        yield ctx.finding(
            f"{ctx.key(_LIST)} is read by nothing without {ctx.key(_BIND)}",
            _LIST,
            label="has no effect",
            fix=Fix("say that ranks are to be bound", {_BIND: True}, effect="each rank keeps to its own cores"),
            severity="warning",
        )
    elif launch.launcher != "pdsh" and len(ctx.slots or ()) > 1:
        yield ctx.finding(
            f"`{launch.launcher}` starts the ranks itself, and nobody binds them to cores",
            _BIND,
            label="has no effect",
            fix=Fix("start them by pdsh, or let `srun` or `mpirun` bind them", {_BIND: None}, effect="as now"),
            severity="warning",
        )
    elif "OMP_NUM_THREADS" in launch.env:
        yield ctx.finding(
            f"{ctx.key(_THREADS)} is overwritten: a rank that is bound has as many threads as cores",
            _THREADS,
            label="has no effect",
            fix=Fix("remove it", {_THREADS: None}, safe=True, effect="as now"),
            severity="warning",
        )
