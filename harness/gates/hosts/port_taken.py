"""A rendezvous port that is taken.

## What it checks
Nobody listens at the port of the rendezvous on the first host (`launch.master_port`, else 29500).

## Why it fails
Rank 0 cannot listen there: `Address already in use`. Where another run of the same user listens, the ranks of this
one may even join that one.

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
worker-0: {ports: {29500: taken}}
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


@gate(
    "HO018",
    "rendezvous-port-taken",
    upstream="raises",
    needs=("the hosts' answers", "hosts"),
    unseen="needs several hosts",
)
def check(ctx: Context) -> Iterator[Finding]:
    """Somebody is there already."""
    survey = ctx.survey
    first = survey.hosts[0] if survey and survey.hosts else None
    state = first.ports.get(survey.port or 0, "free") if survey and first and first.ok else "free"
    if survey is None or first is None or state == "free":
        return
    yield ctx.finding(
        f"port {survey.port} of the first host, `{first.name}`, is not free: {state}",
        "launch.master_port",
        notes=["rank 0 listens there for all others"],
        fix=Fix("set `launch.master_port` to another port, or end the run that has it"),
    )
