"""A sequence degree that makes no sequence groups.

## What it checks
A DeepSpeed JSON with `sequence_parallel_size` above 1 and no `data_parallel_size`.

## Why it fails
DeepSpeed makes its mesh of data and sequence groups only where the JSON has both keys. With the first alone there is
no sequence group: every rank trains data parallel, but the batch triangle divides the ranks by the degree all the
same, so that `train_batch_size` becomes half (or a third, ...) of what is consumed (run on 0.19.8). It is right only
in a script that passes the `mpu` of `UlyssesSPAttentionHF` itself, which then needs no such key; DeepSpeed's tutorial
has it there all the same, so this is a warning. (For a run spec the harness renders it and passes the `mpu`.)

## Example
```json
{
  "train_micro_batch_size_per_gpu": 1,
  "sequence_parallel_size": 2
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
    "SQ001",
    "sequence-degree-without-groups",
    upstream="silent",
    cites=(Cite("__init__.py", 'if "sequence_parallel_size" in config and "data_parallel_size" in config:'),),
    since="0.17.0",
    when=lambda ctx: (
        ctx.sequence_parallel_size > 1 and ctx.run.kind == "deepspeed-json" and not ctx.has_key("data_parallel_size")
    ),
)
def check(ctx: Context) -> Iterator[Finding]:
    """Both keys make the mesh."""
    key = "parallel.sequence_parallel_size"
    if ctx.source.user_key(key).startswith("parallelism_config"):
        return  # accelerate makes the groups and wraps the attention
    yield ctx.finding(
        f"{ctx.key(key)} {ctx.sequence_parallel_size} makes no sequence groups without `data_parallel_size`",
        key,
        label="divides the batch, splits nothing",
        notes=[
            "every rank trains on whole sequences; the batch triangle divides the ranks by the degree all the same",
            "a script that passes the mpu of `UlyssesSPAttentionHF` needs neither key",
        ],
        fix=Fix(f"remove {ctx.key(key)}", {key: None}, effect="the batch is counted as it is consumed"),
        severity="warning",
    )
