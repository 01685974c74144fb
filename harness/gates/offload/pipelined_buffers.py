"""Too few swap buffers for pipelined swapping.

## What it checks
`pipeline_read` or `pipeline_write` in `zero.offload_optimizer` with `device: nvme` at stage 3 and fewer than twice the
buffers of one sub-group: 8 with Adam. The default is 4.

## Why it fails
Two sub-groups are in flight at once, the one that is computed and the one that is read or written: AssertionError in
the first step (run on 0.19.8 with 4 buffers and both flags; 8 ran). With a single sub-group nothing overlaps, so a
model that is known to be smaller than `zero.sub_group_size` passes.

## Example
```yaml
zero:
  stage: 3
  offload_optimizer:
    device: nvme
    nvme_path: /local_nvme
    pipeline_read: true
    pipeline_write: true
```

## Use instead
```yaml
zero:
  stage: 3
  offload_optimizer:
    device: nvme
    nvme_path: /local_nvme
    pipeline_read: true
    pipeline_write: true
    buffer_count: 8
```
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.findings import Finding, Fix
from harness.gates.offload.swapping import shares, sub_group_limit
from harness.gates.registry import Cite, Context, gate


@gate(
    "OF011",
    "too-few-buffers-for-pipelined-swapping",
    upstream="asserts",
    cites=(Cite("runtime/swap_tensor/pipelined_optimizer_swapper.py", "ran out of swap buffers"),),
    when=lambda ctx: ctx.stage == 3 and ctx.offload("offload_optimizer") == "nvme",
    policy="a model of one sub-group runs: nothing of it overlaps",
)
def check(ctx: Context) -> Iterator[Finding]:
    """Two sub-groups are in flight."""
    section = "zero_optimization.offload_optimizer"
    flags = [name for name in ("pipeline_read", "pipeline_write") if ctx.ds(f"{section}.{name}") is True]
    have = ctx.ds(f"{section}.buffer_count", 4)
    one = {"": 0, "adagrad": 3, "lion": 3, "adam": 4, "adamw": 4}.get(ctx.optimizer.name, 2)
    if not flags or not one <= have < 2 * one:
        return  # fewer than one needs: OF010
    parts = shares(ctx) if ctx.run.spec.model.name_or_path or ctx.run.spec.model.config else None
    if parts is not None and sum(parts) <= sub_group_limit(ctx):
        return
    key = f"zero.offload_optimizer.{flags[0]}"
    yield ctx.finding(
        f"{ctx.key(key)} swaps two sub-groups at once and needs {2 * one} buffers, there are {have}",
        key,
        label="two in flight",
        related=[("zero.offload_optimizer.buffer_count", "buffers")],
        fix=Fix(
            f"set {ctx.key('zero.offload_optimizer.buffer_count')} to {2 * one}",
            {"zero.offload_optimizer.buffer_count": 2 * one},
            safe=True,
            effect="twice the buffers in host memory",
        ),
    )
