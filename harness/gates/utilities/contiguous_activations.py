"""Contiguous activations without what they need.

## What it checks
`activation_checkpointing.contiguous_memory_optimization: true` without `partition_activations: true` and
`number_checkpoints`, for a script that hands the block to DeepSpeed.

## Why it fails
`deepspeed.checkpointing.configure` asserts both (run on 0.19.8).

## Example
```json
{
  "train_micro_batch_size_per_gpu": 1,
  "activation_checkpointing": {"contiguous_memory_optimization": true}
}
```

## Use instead
```json
{
  "train_micro_batch_size_per_gpu": 1,
  "activation_checkpointing": {
    "partition_activations": true,
    "contiguous_memory_optimization": true,
    "number_checkpoints": 32
  }
}
```
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.findings import Finding, Fix
from harness.gates.registry import Cite, Context, gate


@gate(
    "UT011",
    "contiguous-activations-alone",
    upstream="asserts",
    cites=(
        Cite(
            "runtime/activation_checkpointing/checkpointing.py",
            "Contiguous Checkpointing is only available with partitioned activations.",
        ),
    ),
    when=lambda ctx: ctx.has_key("activation_checkpointing"),
)
def check(ctx: Context) -> Iterator[Finding]:
    """Three keys or none."""
    if ctx.run.kind == "spec" or ctx.consumer in ("hf", "accelerate"):
        return  # the block has no effect there at all
    block = "activation_checkpointing"
    if ctx.ds(f"{block}.contiguous_memory_optimization") is not True:
        return
    lacks = [] if ctx.ds(f"{block}.partition_activations") is True else ["`partition_activations: true`"]
    lacks += [] if ctx.ds(f"{block}.number_checkpoints") else ["`number_checkpoints`"]
    if not lacks:
        return
    key = ctx.spec_key(f"{block}.contiguous_memory_optimization")
    yield ctx.finding(
        f"{ctx.key(key)} needs {' and '.join(lacks)} beside it",
        key,
        severity="warning",
        notes=["a script that hands the block to `deepspeed.checkpointing.configure` fails there"],
        fix=Fix(f"write {' and '.join(lacks)}, or set it to false", {key: False}, effect="buffers are not contiguous"),
    )
