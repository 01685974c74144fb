"""Partial offload that rounds to all or nothing.

## What it checks
`zero.offload_optimizer.ratio` below 1 at stage 3 for a model with too few sub-groups to be divided like that.

## Why it fails
The share counts sub-groups, not parameters: the first `(1 - ratio)` of them, rounded down, stay on the device. A model
whose shard is smaller than `zero.sub_group_size` (1e9 elements by default) is one sub-group, and `ratio: 0.5` offloads
all of it (run on 0.19.8).

## Example
```yaml
model:
  config:
    model_type: llama
    hidden_size: 2048
    intermediate_size: 5504
    num_hidden_layers: 2
    num_attention_heads: 16
    vocab_size: 32000
zero:
  stage: 3
  offload_optimizer:
    device: cpu
    ratio: 0.5
launch:
  num_gpus: 2
```

## Use instead
```yaml
model:
  config:
    model_type: llama
    hidden_size: 2048
    intermediate_size: 5504
    num_hidden_layers: 2
    num_attention_heads: 16
    vocab_size: 32000
zero:
  stage: 3
  sub_group_size: 10000000
  offload_optimizer:
    device: cpu
    ratio: 0.5
launch:
  num_gpus: 2
```
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.findings import Finding, Fix
from harness.gates.offload.swap_sizes import shares, sub_group_limit
from harness.gates.registry import Cite, Context, gate


@gate(
    "OF014",
    "partial-offload-of-few-sub-groups",
    upstream="silent",
    cites=(Cite("runtime/zero/stage3.py", "if i >= int((1 - self.partial_offload) * sub_group_size):"),),
    needs=("world size", "model facts"),
    when=lambda ctx: ctx.stage == 3 and 0 < ctx.ds("zero_optimization.offload_optimizer.ratio", 1.0) < 1,
)
def check(ctx: Context) -> Iterator[Finding]:
    """Sub-groups are what is divided."""
    parts, limit = shares(ctx), sub_group_limit(ctx)
    ratio = ctx.ds("zero_optimization.offload_optimizer.ratio")
    if parts is None or limit < 1 or ctx.offload_device("offload_optimizer") == "none":
        return
    groups = -(-sum(parts) // limit)
    if groups * min(ratio, 1 - ratio) >= 1:
        return
    size = max(1, int(sum(parts) * min(ratio, 1 - ratio) / 4))
    key = "zero.offload_optimizer.ratio"
    yield ctx.finding(
        f"{ctx.key(key)} is {ratio:g}, but {sum(parts):,} elements a rank make {groups} sub-group{'s' * (groups > 1)}",
        key,
        label="all or nothing",
        related=[("zero.sub_group_size", "elements a sub-group")],
        fix=Fix(
            f"set {ctx.key('zero.sub_group_size')} to {size}",
            {"zero.sub_group_size": size},
            effect="the same steps in smaller pieces; a share of the states stays on the device",
        ),
        severity="warning",
    )
