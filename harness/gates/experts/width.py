"""Expert groups that do not fit the ranks.

## What it checks
`expert_parallel.autoep_size` divides the ranks of a pipeline stage.

## Why it fails
"expert_parallel.autoep_size * expert_parallel.expert_tensor_parallel_size (3 * 1 = 3) must divide the stage size": a
ValueError at initialisation (run on 0.19.8). An AutoEP size below 1 is refused as well.

## Example
```yaml
launch:
  num_gpus: 4
deepspeed:
  expert_parallel:
    enabled: true
    autoep_size: 3
```

## Use instead
```yaml
launch:
  num_gpus: 4
deepspeed:
  expert_parallel:
    enabled: true
    autoep_size: 2
```
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.findings import Finding, Fix
from harness.gates.experts.autoep import divisors, enabled, value
from harness.gates.registry import Cite, Context, gate


@gate(
    "EX004",
    "expert-groups-that-do-not-divide-the-ranks",
    upstream="raises",
    cites=(
        Cite("module_inject/auto_ep_folding.py", "must divide the stage size "),
        Cite("module_inject/auto_ep_folding.py", "must be a positive integer, got"),
    ),
    since="0.19.2",
    needs=("world size",),
    when=enabled,
)
def check(ctx: Context) -> Iterator[Finding]:
    """The ranks of one pipeline stage."""
    size, world = value(ctx, "autoep_size"), ctx.world_size or 1
    if world % ctx.pipeline_parallel_size:
        return
    stage = world // ctx.pipeline_parallel_size
    if size >= 1 and stage % size == 0:
        return
    key, better = "deepspeed.expert_parallel.autoep_size", divisors(stage, max(size, 1))[0]
    of = f" in each of {ctx.pipeline_parallel_size} pipeline stages" if ctx.pipeline_parallel_size > 1 else ""
    yield ctx.finding(
        f"expert groups of {size} do not divide {stage} {'rank' if stage == 1 else 'ranks'}{of}",
        key,
        related=[("launch.num_gpus", "the ranks are set here"), ("parallel.pipeline_parallel_size", "the stages")],
        notes=["DeepSpeed raises ValueError at initialisation"],
        fix=Fix(f"set {ctx.key(key)} to {better}", {key: better}, effect="other memory and speed")
        if better > 1
        else Fix(
            "switch AutoEP off", {"deepspeed.expert_parallel.enabled": False}, effect="every rank owns all experts"
        ),
    )
