"""16-bit master weights without DeepSpeedCPUAdam.

## What it checks
`bf16.bf16_master_weights_and_grads` (unless `bf16.bf16_optimizer_states` keeps the states in bf16 too, on the device)
and `fp16.fp16_master_weights_and_grads` at ZeRO stages 1 to 3: the optimizer is offloaded, and it is Adam or AdamW.

## Why it fails
Of all optimizers DeepSpeedCPUAdam alone keeps fp32 states beside 16-bit master weights. Others are refused when the
engine is built: `Master weights feature requires ZeRO-2 Offload with DeepSpeedCPUAdam` (run on 0.19.8).

## Example
```yaml
precision:
  bf16: true
zero:
  stage: 2
deepspeed:
  bf16:
    bf16_master_weights_and_grads: true
```

## Use instead
```yaml
precision:
  bf16: true
zero:
  stage: 2
  offload_optimizer:
    device: cpu
deepspeed:
  bf16:
    bf16_master_weights_and_grads: true
```
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.findings import Finding, Fix
from harness.gates.dtypes import model_dtype
from harness.gates.registry import Cite, Context, gate


@gate(
    "PR022",
    "masters-in-16-bit-without-cpu-adam",
    upstream="asserts",
    cites=(Cite("runtime/zero/stage_1_and_2.py", "Master weights feature requires {self.zero_stage_string} Offload"),),
    when=lambda ctx: ctx.stage > 0,
)
def check(ctx: Context) -> Iterator[Finding]:
    """CPU Adam or nothing."""
    kind = model_dtype(ctx)
    flag = {"bf16": "bf16.bf16_master_weights_and_grads", "fp16": "fp16.fp16_master_weights_and_grads"}.get(kind or "")
    if flag is None or ctx.ds(flag) is not True:
        return
    offloaded = ctx.offload_device("offload_optimizer") != "none"
    if kind == "bf16" and ctx.ds("bf16.bf16_optimizer_states") is True and not offloaded:
        return
    optimizer = ctx.optimizer
    adam = optimizer.name in ("", "adam", "adamw") and not optimizer.params.get("torch_adam")
    if offloaded and adam and not ctx.ds("zero_optimization.zenflow"):
        return
    place, device = f"deepspeed.{flag}", "zero.offload_optimizer.device"
    fix = (
        Fix(f"set {ctx.key(device)} to `cpu`", {device: "cpu"}, effect="master weights and the step move to the CPU")
        if adam and not offloaded
        else Fix(f"remove {ctx.key(place)}", {place: None}, effect="keeps master weights in fp32")
    )
    yield ctx.finding(
        f"{ctx.key(place)} needs Adam or AdamW with an optimizer on the CPU",
        place,
        related=[(f"{optimizer.key}.type", "the optimizer"), (device, "where it is")],
        notes=["DeepSpeed asserts this when it builds the engine"],
        fix=fix,
    )
