"""A list of cores that the launcher cannot deal out.

## What it checks
`launch.bind_core_list` names cores as DeepSpeed reads them, numbers and ranges in ascending order, at least one for
each rank of a host.

## Why it fails
The launcher reads the list on each host, after it has been reached, and raises there: `Bad range`, or `At least one
core needs to be assigned to each rank`.

## Example
```yaml
launch:
  num_gpus: 4
  bind_cores_to_rank: true
  bind_core_list: "0-1,1-3"
```

## Use instead
```yaml
launch:
  num_gpus: 4
  bind_cores_to_rank: true
  bind_core_list: 0-3
```
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.facts.core_lists import parse_core_list
from harness.findings import Finding, Fix
from harness.gates.registry import Cite, Context, gate

_KEY = "launch.bind_core_list"
_ALL = Fix(
    "name cores as `0-27,56-83`, at least one for each rank, or leave it out",
    {_KEY: None},
    effect="all physical cores are dealt out",
)


@gate(
    "HO029",
    "cores-that-cannot-be-dealt-out",
    upstream="raises",
    cites=(Cite("utils/numa.py", "parse_range_list"),),
    when=lambda ctx: ctx.run.spec.launch.bind_cores_to_rank and ctx.run.spec.launch.bind_core_list is not None,
    unseen="refused by the launcher, before there is an engine",
)
def check(ctx: Context) -> Iterator[Finding]:
    """As the launcher would, before any host is asked."""
    text = ctx.run.spec.launch.bind_core_list or ""
    try:
        cores = parse_core_list(text)
    except ValueError as error:
        yield ctx.finding(f"{ctx.key(_KEY)}: {error}", _KEY, fix=_ALL)
        return
    slots = max(ctx.slots or (ctx.run.spec.launch.num_gpus or 1,))
    if len(cores) < slots:
        yield ctx.finding(
            f"{ctx.key(_KEY)} names {len(cores)} cores, for {slots} ranks on a host",
            _KEY,
            fix=_ALL,
        )
