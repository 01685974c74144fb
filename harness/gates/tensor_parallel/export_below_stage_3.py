"""An export of a tensor-parallel model below stage 3.

## What it checks
`export.at_end`, or `zero.stage3_gather_16bit_weights_on_model_save`, with a tensor degree at ZeRO stages 0 to 2.

## Why it fails
DeepSpeed's `save_16bit_model` gathers over the tensor group at stage 3 only. Below it, it returns True and writes the
shard of the first tensor rank: 268 KB of 467 KB in a run on 0.19.8. `zero_to_fp32.py` fails on such checkpoints. What
gathers whole weights is `engine._consolidated_16bit_state_dict()`, which accelerate's `get_state_dict` calls.

## Example
```yaml
zero:
  stage: 2
parallel:
  tensor_parallel_size: 2
export:
  at_end: true
```

## Use instead
```yaml
zero:
  stage: 2
parallel:
  tensor_parallel_size: 2
```
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.findings import Finding, Fix
from harness.gates.registry import Cite, Context, gate


@gate(
    "TP019",
    "tensor-parallel-export-of-one-shard",
    upstream="silent",
    cites=(Cite("runtime/engine.py", "def save_16bit_model("),),
    since="0.16.4",
    when=lambda ctx: ctx.tensor > 1 and ctx.stage < 3,
)
def check(ctx: Context) -> Iterator[Finding]:
    """Gathered at stage 3 only."""
    gather = "zero.stage3_gather_16bit_weights_on_model_save"
    if ctx.run.spec.export.at_end:
        key = "export.at_end"
    elif ctx.run.spec.zero.stage3_gather_16bit_weights_on_model_save:
        key = gather
    else:
        return
    yield ctx.finding(
        f"a 16-bit export at ZeRO stage {ctx.stage} holds one of {ctx.tensor} tensor shards of each layer",
        key,
        related=[("parallel.tensor_parallel_size", "the layers are sharded here"), ("zero.stage", "the stage")],
        notes=["`save_16bit_model` returns True all the same", "`zero_to_fp32.py` fails on these checkpoints"],
        fix=Fix(f"remove {ctx.key(key)}", {key: None}, effect="no 16-bit file; gather the weights in the script"),
        severity="warning",
    )
