"""A ZeRO block without a stage.

## What it checks
A `zero_optimization` block that does not write `stage`.

## Why it fails
DeepSpeed's default is stage 0, which is no ZeRO: every rank keeps the whole optimizer, all gradients and all
parameters, and the rest of the block is not read. Nothing is said; training is right and needs the memory that ZeRO was
to save (run on 0.19.8).

## Example
```json
{
  "train_micro_batch_size_per_gpu": 1,
  "zero_optimization": {
    "overlap_comm": true
  }
}
```

## Use instead
```json
{
  "train_micro_batch_size_per_gpu": 1,
  "zero_optimization": {
    "stage": 2,
    "overlap_comm": true
  }
}
```
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.findings import Finding, Fix
from harness.gates.registry import Cite, Context, gate

_OF_STAGE_3 = (
    "offload_param",
    "sub_group_size",
    "stage3_prefetch_bucket_size",
    "stage3_param_persistence_threshold",
    "stage3_max_live_parameters",
    "stage3_max_reuse_distance",
    "stage3_gather_16bit_weights_on_model_save",
    "zero_hpz_partition_size",
    "leaf_module",
)


def _misspelt(block: object) -> bool:
    """Is there a key that is nearly `stage`?"""
    from harness.spec.suggestions import nearest_name

    return isinstance(block, dict) and any(nearest_name(str(name), ("stage",)) for name in block)


@gate(
    "ZR001",
    "zero-without-a-stage",
    upstream="silent",
    cites=(Cite("runtime/zero/config.py", "stage: ZeroStageEnum = 0"),),
    when=lambda ctx: ctx.has_key("zero_optimization") and not ctx.has_key("zero_optimization.stage"),
)
def check(ctx: Context) -> Iterator[Finding]:
    """The stage has to be written."""
    if ctx.source.has_key("zero.stage"):
        return  # the old form `zero_optimization: true`, which is a stage of its own
    if _misspelt(ctx.ds("zero_optimization")):
        return  # told at that key
    names = [name for name in _OF_STAGE_3 if ctx.has_key(f"zero_optimization.{name}")]
    stage = 3 if names else 2
    where = ctx.spec_key("zero_optimization.stage")
    yield ctx.finding(
        f"{ctx.key('zero')} does not say its stage, so DeepSpeed takes 0: no ZeRO",
        where,
        label="which stage?",
        notes=["DeepSpeed reads nothing else of this block at stage 0"],
        fix=Fix(
            f"set {ctx.key('zero.stage')} to {stage}"
            + (f", which reads `{names[0]}`" if names else ", or the one you mean"),
            {where: stage},
            effect="optimizer states and gradients are sharded" + (", parameters too" if names else ""),
        ),
    )
