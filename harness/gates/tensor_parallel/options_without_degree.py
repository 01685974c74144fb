"""Tensor-parallel options without a tensor degree.

## What it checks
`preset_model`, `partition_config`, `vocab_parallel_lm_head`, `vocab_parallel_ce_backend` or `tp_overlap_comm` in the
`tensor_parallel` block while the tensor degree is 1.

## Why it fails
DeepSpeed partitions a model only where `autotp_size` is above 1; the rest of the block is not looked at, and every
rank trains data parallel.

## Example
```yaml
deepspeed:
  tensor_parallel:
    preset_model: llama
```

## Use instead
```yaml
parallel:
  tensor_parallel_size: 2
deepspeed:
  tensor_parallel:
    preset_model: llama
```
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.findings import Finding, Fix
from harness.gates.registry import Cite, Context, gate

_OPTIONS = (
    "preset_model",
    "partition_config",
    "vocab_parallel_lm_head",
    "vocab_parallel_ce_backend",
    "tp_overlap_comm",
)


@gate(
    "TP013",
    "tensor-options-without-degree",
    upstream="silent",
    cites=(Cite("runtime/engine.py", "if self.autotp_size() > 1:"),),
    since="0.16.6",
    when=lambda ctx: ctx.tensor_parallel_size == 1 and bool(ctx.ds("tensor_parallel")),
)
def check(ctx: Context) -> Iterator[Finding]:
    """The degree switches the block on."""
    if any((ctx.ds(f"tensor_parallel.{block}.tp_size") or 1) != 1 for block in ("tp", "tensor_parallel")):
        return  # that is where the degree was meant to be
    found = [name for name in _OPTIONS if ctx.ds(f"tensor_parallel.{name}") not in (None, False, "torch")]
    if not found:
        return
    keys, degree = [f"deepspeed.tensor_parallel.{name}" for name in found], "parallel.tensor_parallel_size"
    yield ctx.finding(
        f"{ctx.key(keys[0])} has no effect without a tensor degree above 1",
        keys[0],
        label="is not read",
        related=[(key, "nor is this") for key in keys[1:]],
        notes=["every rank keeps whole layers and trains data parallel"],
        fix=Fix(
            f"set {ctx.key(degree)}, or remove the block's options",
            dict.fromkeys(keys),
            safe=True,
            effect="nothing else is trained than now",
        ),
        severity="warning",
    )
