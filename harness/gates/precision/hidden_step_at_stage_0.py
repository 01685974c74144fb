"""16-bit training without ZeRO: a hidden optimizer step.

## What it checks
A DeepSpeed JSON with `bf16.enabled`, stage 0 and an optimizer that keeps a state, outside a pipeline. (fp16 at stage 0
is `unscaled-fp16-without-zero`. A run that the harness trains takes the step back before the first one.)

## Why it fails
The 16-bit optimizers of stage 0 call `optimizer.step()` with zero gradients while they are built, to allocate the
states. Adam's step count is then one ahead, so that the first update is a quarter too small, and AdamW has decayed
the weights once before training (run on 0.19.8; pipelines take another optimizer, which does not). Stage 1 on one
data-parallel rank or many does not do this and costs no more memory.

## Example
```json
{"train_batch_size": 8, "bf16": {"enabled": true}, "gradient_clipping": 1.0,
  "optimizer": {"type": "AdamW", "params": {"lr": 1e-4, "weight_decay": 0.0}},
  "zero_optimization": {"stage": 0}
}
```

## Use instead
```json
{"train_batch_size": 8, "bf16": {"enabled": true}, "gradient_clipping": 1.0,
  "optimizer": {"type": "AdamW", "params": {"lr": 1e-4, "weight_decay": 0.0}},
  "zero_optimization": {"stage": 1}
}
```
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.findings import Finding, Fix
from harness.gates.registry import Cite, Context, gate


@gate(
    "PR003",
    "hidden-first-step-in-16-bit",
    upstream="silent",
    since="0.17.6",
    cites=(Cite("runtime/fp16/fused_optimizer.py", "self.initialize_optimizer_states()"),),
)
def check(ctx: Context) -> Iterator[Finding]:
    """16-bit at stage 0 starts one step ahead."""
    spec = ctx.run.spec
    if ctx.run.kind == "spec":
        return
    stateful = ctx.optimizer.name != "sgd" or bool(ctx.optimizer.params.get("momentum"))
    if (
        ctx.pipeline_parallel_size > 1
        or spec.zero.stage != 0
        or spec.precision.fp16
        or not spec.precision.bf16
        or not stateful
    ):
        return  # fp16 at stage 0 is PR002
    yield ctx.finding(
        "bf16 at ZeRO stage 0 takes a hidden optimizer step before the first one",
        "precision.bf16",
        related=[("zero.stage", "the stage is set here")],
        notes=["Adam counts one step ahead and weight decay is applied once too often"],
        fix=Fix(f"set {ctx.key('zero.stage')} to 1", {"zero.stage": 1}, effect="the first step is the first step"),
        severity="warning",
    )
