"""hpZ with tensor parallelism.

## What it checks
`zero_hpz_partition_size` above 1 at stage 3 with a tensor-parallel degree above 1.

## Why it fails
DeepSpeed cuts the whole world into hpZ groups and not the data-parallel ranks: ranks that hold different tensor shards
exchange their parameters as if they were the same. On four ranks the losses leave those of the run without hpZ at the
first step (run on 0.19.8).

## Example
```yaml
zero:
  stage: 3
parallel:
  tensor_parallel_size: 2
deepspeed:
  zero_optimization:
    zero_hpz_partition_size: 2
launch:
  num_gpus: 4
```

## Use instead
```yaml
zero:
  stage: 3
parallel:
  tensor_parallel_size: 2
launch:
  num_gpus: 4
```
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.findings import Finding, Fix
from harness.gates.registry import Cite, Context, gate


@gate(
    "ZR018",
    "hpz-with-tensor-parallelism",
    upstream="wrong",
    cites=(Cite("utils/groups.py", "zero_param_parallel_size_ = min(group_size, world_size)"),),
    when=lambda ctx: ctx.stage == 3 and ctx.tensor_parallel_size > 1,
)
def check(ctx: Context) -> Iterator[Finding]:
    """hpZ does not know of tensor shards."""
    size = ctx.ds("zero_optimization.zero_hpz_partition_size", 1)
    if size <= 1:
        return
    key = ctx.spec_key("zero_optimization.zero_hpz_partition_size")
    yield ctx.finding(
        f"{ctx.key(key)} groups ranks that hold different tensor shards",
        key,
        label="cuts the whole world",
        related=[("parallel.tensor_parallel_size", f"{ctx.tensor_parallel_size} ranks share each layer")],
        notes=["DeepSpeed trains with wrong weights, without an error"],
        fix=Fix("remove it", {key: None}, safe=True, effect="the weights are right; parameters cross nodes more often"),
    )
