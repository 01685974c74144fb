"""A number format of optimizer states that is not read.

## What it checks
`fp32_optimizer_states: false` in the parameters of Adam or AdamW without an offloaded optimizer, or offloaded without
`bf16.bf16_master_weights_and_grads`.

## Why it fails
On the device DeepSpeed drops the key and FusedAdam keeps its states in fp32. Offloaded, the states take the format of
the master weights, which is fp32 unless those were made bf16 (run on 0.19.8).

## Example
```yaml
zero:
  stage: 2
deepspeed:
  optimizer:
    type: AdamW
    params:
      lr: 0.0001
      weight_decay: 0.0
      fp32_optimizer_states: false
```

## Use instead
```yaml
zero:
  stage: 2
deepspeed:
  optimizer:
    type: AdamW
    params:
      lr: 0.0001
      weight_decay: 0.0
```
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.findings import Finding, Fix
from harness.gates.registry import Cite, Context, gate


@gate(
    "OF025",
    "fp32-optimizer-states-not-read",
    upstream="silent",
    cites=(Cite("runtime/engine.py", "optimizer_parameters.pop('fp32_optimizer_states', None)"),),
    when=lambda ctx: ctx.optimizer.params.get("fp32_optimizer_states") is False,
)
def check(ctx: Context) -> Iterator[Finding]:
    """States follow the master weights."""
    offloaded = ctx.stage > 0 and ctx.offload_device("offload_optimizer") != "none"
    if ctx.optimizer.name not in ("adam", "adamw") or ctx.optimizer.params.get("torch_adam"):
        return
    if offloaded and (ctx.ds("bf16.bf16_master_weights_and_grads") or ctx.ds("fp16.fp16_master_weights_and_grads")):
        return
    key = f"{ctx.optimizer.key}.params.fp32_optimizer_states"
    why = "the states follow fp32 master weights" if offloaded else "only an offloaded optimizer reads it"
    yield ctx.finding(
        f"{ctx.key(key)} is `false`, but {why}",
        key,
        label="has no effect",
        fix=Fix(
            "remove it; `bf16.bf16_optimizer_states` is the key for 16-bit states",
            {key: None},
            safe=True,
        ),
        severity="warning",
    )
