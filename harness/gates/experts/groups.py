"""Group-limited routing with one half of its numbers.

## What it checks
With AutoEP on: `num_expert_groups` and `num_limited_groups` are given together, both at least 1, the second not above
the first, and the experts divide over the groups.

## Why it fails
DeepSpeed checks them at initialisation, partly after the layers have been found, and raises ValueError (run on
0.19.8). A model whose own configuration has `n_group` and `topk_group` (DeepSeek) needs neither.

## Example
```yaml
deepspeed:
  expert_parallel:
    enabled: true
    autoep_size: 2
    num_expert_groups: 4
    num_limited_groups: 8
```

## Use instead
```yaml
deepspeed:
  expert_parallel:
    enabled: true
    autoep_size: 2
    num_expert_groups: 4
    num_limited_groups: 2
```
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.findings import Finding, Fix
from harness.gates.experts.autoep import enabled
from harness.gates.registry import Cite, Context, gate


@gate(
    "EX013",
    "expert-groups-of-routing-refused",
    upstream="raises",
    cites=(Cite("module_inject/auto_ep_config.py", "num_limited_groups ({config.num_limited_groups}) must be <= "),),
    since="0.19.2",
    when=enabled,
)
def check(ctx: Context) -> Iterator[Finding]:
    """Two numbers that belong together."""
    groups, limit = (ctx.ds(f"expert_parallel.{name}") for name in ("num_expert_groups", "num_limited_groups"))
    experts = ctx.model.experts if ctx.model else 0
    places = {name: f"deepspeed.expert_parallel.{name}" for name in ("num_expert_groups", "num_limited_groups")}
    first, second = places["num_expert_groups"], places["num_limited_groups"]
    if isinstance(limit, int) and (limit < 1 or (isinstance(groups, int) and limit > groups >= 1)):
        what, where = f"{ctx.key(second)} is {limit}" + (f" of {groups} groups" if groups else ""), second
    elif isinstance(groups, int) and groups < 1:
        what, where = f"{ctx.key(first)} is {groups}, it must be at least 1", first
    elif isinstance(groups, int) and experts and experts % groups:
        what, where = f"{experts} experts do not divide over {groups} groups", first
    else:
        return
    yield ctx.finding(
        what,
        where,
        related=[(first, "the groups"), ("model.name_or_path", "the model")],
        notes=["DeepSpeed raises ValueError at initialisation"],
        fix=Fix(
            "remove both, so that the model's own routing counts", dict.fromkeys(places.values()), effect="its own"
        ),
    )
