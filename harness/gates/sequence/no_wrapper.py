"""Sequence groups that only a script can use.

## What it checks
A DeepSpeed JSON with both `sequence_parallel_size` above 1 and `data_parallel_size`.

## Why it fails
The two keys make the groups, and gradients are averaged over them, but nothing splits a sequence: that is done by the
attention wrapper (`UlyssesSPAttentionHF.register_with_transformers`) and `UlyssesSPDataLoaderAdapter`, or by the
Trainer's and accelerate's `parallelism_config`. Without them every rank of a group trains on the whole sequence it is
handed, in silence (run on 0.19.8: the losses of one rank).

Mind the loss as well: at stages 0 to 2 DeepSpeed adds gradients up over a sequence group, at stage 3 it averages
them. With the usual mean over all shards, gradients and their norm come out as many times too large as the degree at
stages 0 to 2 (norms of 3.92 and 1.96 in runs on four ranks), which clipping and SGD feel.

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
    cites=(Cite("runtime/sequence_parallel/ulysses_sp.py", "def register_with_transformers("),),
    since="0.17.0",
    when=lambda ctx: ctx.sequence > 1 and ctx.run.kind == "deepspeed-json" and ctx.wrote("data_parallel_size"),
)
def check(ctx: Context) -> Iterator[Finding]:
    """Groups are not a split."""
    key, other = "parallel.sequence_parallel_size", "deepspeed.data_parallel_size"
    if ctx.source.user_key(key).startswith("parallelism_config"):
        return  # accelerate makes the groups and wraps the attention
    yield ctx.finding(
        f"{ctx.key(key)} {ctx.sequence} splits no sequence by itself, the script must",
        key,
        related=[(other, "makes the groups, with the degree")],
        notes=[
            "it takes `UlyssesSPAttentionHF.register_with_transformers` and `UlyssesSPDataLoaderAdapter`",
            *(["below stage 3 gradients are added up over a sequence group, not averaged"] if ctx.stage < 3 else ()),
        ],
        fix=Fix("remove both keys where the script has no wrapper", {key: None, other: None}, effect="data parallel"),
        severity="warning",
    )
