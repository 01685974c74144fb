"""A host without a compiler for the ops of the run.

## What it checks
Every host has a C++ compiler when DeepSpeed has ops to compile for this run.

## Why it fails
DeepSpeed compiles its optimizers on each host at first use. Where they were compiled before and are kept, nothing is
needed; else the ranks there fail at start-up.

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
ops: [cpu_adam]
worker-1: {compiler: null}
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
    "EN048",
    "no-compiler-there",
    upstream="raises",
    needs=("the hosts' answers", "hosts"),
    unseen="needs several hosts",
)
def check(ctx: Context) -> Iterator[Finding]:
    """Nothing to compile with."""
    survey = ctx.survey
    lacking = [host for host in survey.reachable_hosts if host.compiler is None] if survey and survey.ops else []
    if survey and lacking:
        yield ctx.finding(
            f"{format_hosts(lacking)} has no C++ compiler, and the ranks load {format_hosts(survey.ops)}",
            "launch.hostfile",
            notes=["where they were compiled before, that is enough"],
            fix=Fix("install one there: apt install g++"),
            severity="warning",
        )
