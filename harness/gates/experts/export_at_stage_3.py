"""A 16-bit export of experts at stage 3.

## What it checks
`export.at_end` or `zero.stage3_gather_16bit_weights_on_model_save` with an enabled `expert_parallel` block at ZeRO
stage 3.

## Why it fails
`save_16bit_model` and the consolidated state dict raise NotImplementedError for AutoEP at stage 3; with the gather
key the Trainer and accelerate call them at the first save. Convert a checkpoint to a universal one instead (read in
0.19.3 and 0.19.8).

## Example
```yaml
zero:
  stage: 3
  stage3_gather_16bit_weights_on_model_save: true
deepspeed:
  expert_parallel:
    enabled: true
    autoep_size: 2
```

## Use instead
```yaml
zero:
  stage: 3
deepspeed:
  expert_parallel:
    enabled: true
    autoep_size: 2
```
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.findings import Finding, Fix
from harness.gates.experts.autoep import enabled
from harness.gates.registry import Cite, Context, gate


@gate(
    "EX014",
    "expert-export-at-stage-3",
    upstream="raises",
    cites=(Cite("runtime/engine.py", "_raise_if_autoep_zero3_consolidated_export"),),
    since="0.19.3",
    when=lambda ctx: enabled(ctx) and ctx.stage == 3,
)
def check(ctx: Context) -> Iterator[Finding]:
    """Experts are not gathered."""
    gather = "zero.stage3_gather_16bit_weights_on_model_save"
    if ctx.run.spec.zero.stage3_gather_16bit_weights_on_model_save:
        key = gather
    elif ctx.run.spec.export.at_end:
        key = "export.at_end"
    else:
        return
    yield ctx.finding(
        "DeepSpeed cannot gather the experts of AutoEP into a 16-bit file at ZeRO stage 3",
        key,
        related=[("deepspeed.expert_parallel.enabled", "AutoEP"), ("zero.stage", "the stage")],
        notes=["`save_16bit_model` raises NotImplementedError at the first save"],
        fix=Fix(
            f"remove {ctx.key(key)}", {key: None}, effect="no 16-bit file; convert a checkpoint to a universal one"
        ),
        severity="warning",
    )
