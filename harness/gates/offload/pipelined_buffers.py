"""Too few swap buffers for pipelined swapping.

## What it checks
`pipeline_read` or `pipeline_write` in `zero.offload_optimizer` with `device: nvme` at stage 3 and too few buffers for
the sub-groups that are in flight: with Adam 8 for one of the two keys, 12 for both. The default is 4.

## Why it fails
The sub-group that is computed, the one that is read ahead and the one that is still written each hold the buffers of a
whole sub-group, four with Adam. One too few is an AssertionError in the first step (run on 0.19.8 with a model of six
sub-groups: 7 buffers failed and 8 ran with one flag, 11 failed and 12 ran with both). A model of two sub-groups needs
8 with both flags; with a single one nothing overlaps, so a model that is known to be smaller than `zero.sub_group_size`
passes.

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
    buffer_count: 12
```
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.findings import Finding, Fix
from harness.gates.offload.swap_sizes import BUFFERS, shares, sub_groups_on_disk
from harness.gates.registry import Cite, Context, gate


@gate(
    "OF011",
    "too-few-buffers-for-pipelined-swapping",
    upstream="asserts",
    cites=(Cite("runtime/swap_tensor/pipelined_optimizer_swapper.py", "ran out of swap buffers"),),
    when=lambda ctx: ctx.stage == 3 and ctx.offload_device("offload_optimizer") == "nvme",
    policy="a model of one sub-group runs: nothing of it overlaps",
)
def check(ctx: Context) -> Iterator[Finding]:
    """Each sub-group in flight holds its buffers."""
    section = "zero_optimization.offload_optimizer"
    flags = [name for name in ("pipeline_read", "pipeline_write") if ctx.ds(f"{section}.{name}") is True]
    have = ctx.ds(f"{section}.buffer_count", 4)
    one = BUFFERS.get(ctx.optimizer.name, 2)
    if not flags or not one <= have:
        return  # fewer than one needs: OF010
    parts = shares(ctx) if ctx.run.spec.model.name_or_path or ctx.run.spec.model.config else None
    flying = 1 + len(flags) if parts is None else min(1 + len(flags), sub_groups_on_disk(ctx, parts))
    if have >= flying * one:
        return
    key = f"zero.offload_optimizer.{flags[0]}"
    named = " and ".join(ctx.key(f"zero.offload_optimizer.{name}") for name in flags)
    yield ctx.finding(
        f"{named} {'have' if flags[1:] else 'has'} {flying} sub-groups in memory at once, which need {flying * one}"
        f" buffers: there are {have}",
        key,
        label=f"{flying} in flight",
        related=[("zero.offload_optimizer.buffer_count", "buffers")],
        fix=Fix(
            f"set {ctx.key('zero.offload_optimizer.buffer_count')} to {flying * one}",
            {"zero.offload_optimizer.buffer_count": flying * one},
            safe=parts is not None,  # a model that is not known may have fewer sub-groups
            effect="more buffers in host memory",
        ),
    )
