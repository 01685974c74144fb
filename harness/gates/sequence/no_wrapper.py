"""Sequence groups that only a script can use.

## What it checks
A DeepSpeed JSON with both `sequence_parallel_size` above 1 and `data_parallel_size`.

## Why it fails
The two keys make the groups, but nothing splits a sequence: that is done by the attention wrapper
(`UlyssesSPAttentionHF.register_with_transformers`) and `UlyssesSPDataLoaderAdapter`, or by the Trainer's and
accelerate's `parallelism_config`. Without them every rank of a group trains on the whole sequence it is handed, in
silence (run on 0.19.8: the losses of one rank).

Nor are the groups enough for a script that splits: at stages 0 to 2 gradients are reduced over the data ranks alone,
so that each rank of a sequence group keeps its own and their weights drift apart (run on 2 and 4 ranks; stage 3
reduces over all). It takes the `mpu` that `register_with_transformers` returns, given to `deepspeed.initialize`.
With it, stages 0 to 2 add gradients up over a sequence group and stage 3 averages them (run): with the usual mean over
all shards, gradients and their norm come out as many times too large as the degree at stages 0 to 2.

## Example
```json
{
  "train_micro_batch_size_per_gpu": 1,
  "sequence_parallel_size": 2,
  "data_parallel_size": 2
}
```

## Use instead
```json
{
  "train_micro_batch_size_per_gpu": 1
}
```
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.findings import Finding, Fix
from harness.gates.registry import Cite, Context, gate


@gate(
    "SQ002",
    "sequence-groups-alone-split-nothing",
    upstream="silent",
    cites=(
        Cite("runtime/sequence_parallel/ulysses_sp.py", "def register_with_transformers("),
        Cite("utils/groups.py", 'return mesh_device.get_group(mesh_dim="data_parallel")'),
    ),
    since="0.17.0",
    when=lambda ctx: (
        ctx.sequence_parallel_size > 1 and ctx.run.kind == "deepspeed-json" and ctx.has_key("data_parallel_size")
    ),
)
def check(ctx: Context) -> Iterator[Finding]:
    """Groups are not a split."""
    key, other = "parallel.sequence_parallel_size", "deepspeed.data_parallel_size"
    if ctx.source.user_key(key).startswith("parallelism_config"):
        return  # accelerate makes the groups and wraps the attention
    yield ctx.finding(
        f"{ctx.key(key)} {ctx.sequence_parallel_size} splits no sequence by itself, the script must",
        key,
        related=[(other, "makes the groups, with the degree")],
        notes=[
            "it takes `UlyssesSPAttentionHF.register_with_transformers` and `UlyssesSPDataLoaderAdapter`",
            *(
                ["below stage 3 the groups of these keys leave gradients unreduced; `initialize` needs the `mpu` too"]
                if ctx.stage < 3
                else ()
            ),
        ],
        fix=Fix("remove both keys where the script has no wrapper", {key: None, other: None}, effect="data parallel"),
        severity="warning",
    )
