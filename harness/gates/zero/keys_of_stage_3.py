"""Keys of stage 3 below stage 3.

## What it checks
Keys of `zero_optimization` that belong to sharded parameters, `stage3_*`, `sub_group_size`, `leaf_module`,
`zero_hpz_partition_size`, `zero_quantized_*` and a few more, with a stage of 0, 1 or 2. Flags that are off are no
question. (`offload_param` has a gate of its own, OF001.)

## Why it fails
DeepSpeed hands them to stage 3 alone. Below it they are accepted and not read; losses are those of the same file
without them (run on 0.19.8 with `stage3_*`, hpZ, quantized weights, quantized gradients and leaf modules).

## Example
```yaml
zero:
  stage: 2
deepspeed:
  zero_optimization:
    zero_quantized_weights: true
```

## Use instead
```yaml
zero:
  stage: 3
deepspeed:
  zero_optimization:
    zero_quantized_weights: true
```
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.findings import Finding, Fix
from harness.gates.registry import Cite, Context, gate

_KEYS = tuple(
    """stage3_prefetch_bucket_size stage3_param_persistence_threshold stage3_model_persistence_threshold
    stage3_max_live_parameters stage3_max_reuse_distance stage3_module_granularity_threshold
    stage3_use_all_reduce_for_fetch_params stage3_allgather_sequential stage3_gather_16bit_weights_on_model_save
    prefetch_bucket_size param_persistence_threshold model_persistence_threshold max_live_parameters max_reuse_distance
    module_granularity_threshold use_all_reduce_for_fetch_params allgather_sequential gather_16bit_weights_on_model_save
    sub_group_size leaf_module zero_hpz_partition_size zero_quantized_weights zero_quantized_nontrainable_weights
    zero_quantized_gradients pipeline_loading_checkpoint save_muon_momentum_buffer_in_memory""".split()
)


def _asked(ctx: Context, name: str) -> bool:
    """Does the file ask for something with this key: not `auto`, not off?"""
    key = f"zero_optimization.{name}"
    value = ctx.ds(key)
    if name == "zero_hpz_partition_size":
        return isinstance(value, int) and value > 1
    return ctx.has_key(key) and value not in (None, False, {})


@gate(
    "ZR002",
    "keys-of-stage-3-below-it",
    upstream="silent",
    cites=(Cite("runtime/engine.py", "zero_quantized_weights=self.zero_quantized_weights()"),),
    when=lambda ctx: ctx.stage < 3 and ctx.has_key("zero_optimization.stage"),
)
def check(ctx: Context) -> Iterator[Finding]:
    """Below stage 3 nothing reads these."""
    if ctx.is_auto("zero_optimization.stage"):
        return
    names = [name for name in _KEYS if _asked(ctx, name)]
    if not names:
        return
    first, more = ctx.spec_key(f"zero_optimization.{names[0]}"), len(names) - 1
    what = ctx.key(first) + (f" and {more} other key{'s' if more > 1 else ''}" if more else "")
    yield ctx.finding(
        f"{what} of stage 3 {'are' if more else 'is'} not read at ZeRO stage {ctx.stage}",
        first,
        label="has no effect",
        related=[("zero.stage", "the stage is set here")],
        notes=[f"not read: {', '.join(f'`{name}`' for name in names)}"] if more else [],
        fix=Fix(
            f"remove {'them' if more else 'it'}, or set {ctx.key('zero.stage')} to 3",
            {ctx.spec_key(f"zero_optimization.{name}"): None for name in names},
            safe=True,
        ),
        severity="warning",
        of_key=True,
    )
