"""16-bit master weights of a model in another format.

## What it checks
`bf16.bf16_master_weights_and_grads` while `bf16` is off, or `fp16.fp16_master_weights_and_grads` while `fp16` is off,
at ZeRO stages 1 to 3.

## Why it fails
The flags are read whether the block is on or off. The model stays in fp32 and its master weights, and with
`bf16_optimizer_states` the states too, are kept in 16-bit: less precise than fp32, with the memory of fp32 (run on
0.19.8: other losses than both fp32 and bf16).

## Example
```json
{
  "train_micro_batch_size_per_gpu": 1,
  "gradient_clipping": 1.0,
  "optimizer": {"type": "AdamW", "params": {"lr": 1e-4, "weight_decay": 0.0}},
  "zero_optimization": {"stage": 2},
  "bf16": {"enabled": false, "bf16_master_weights_and_grads": true, "bf16_optimizer_states": true}
}
```

## Use instead
```json
{
  "train_micro_batch_size_per_gpu": 1,
  "gradient_clipping": 1.0,
  "optimizer": {"type": "AdamW", "params": {"lr": 1e-4, "weight_decay": 0.0}},
  "zero_optimization": {"stage": 2},
  "bf16": {"enabled": true, "bf16_master_weights_and_grads": true, "bf16_optimizer_states": true}
}
```
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.findings import Finding, Fix
from harness.gates.dtypes import model_dtype
from harness.gates.registry import Cite, Context, gate


@gate(
    "PR024",
    "masters-of-another-format",
    upstream="silent",
    cites=(Cite("runtime/config.py", "if self.bfloat16_config.bf16_master_weights_and_grads:"),),
    when=lambda ctx: ctx.stage > 0,
)
def check(ctx: Context) -> Iterator[Finding]:
    """The masters' format is the model's."""
    model = model_dtype(ctx)
    for block in ("bf16", "fp16"):
        flag = f"{block}.{block}_master_weights_and_grads"
        if model in (None, block) or ctx.ds(flag) is not True:
            continue
        place, states = f"deepspeed.{flag}", f"deepspeed.{block}.{block}_optimizer_states"
        sets = {place: None} | ({states: None} if ctx.ds("bf16.bf16_optimizer_states") and block == "bf16" else {})
        yield ctx.finding(
            f"{ctx.key(place)} is read although {ctx.key(f'precision.{block}')} is off: {model} with {block} masters",
            place,
            fix=Fix("remove " + " and ".join(ctx.key(k) for k in sets), sets, effect="keeps master weights in fp32"),
        )
