"""AutoEP with sequence parallelism.

## What it checks
An enabled `expert_parallel` block with a sequence degree above 1.

## Why it fails
The `mpu` that comes with `UlyssesSPAttentionHF` calls its sequence groups model-parallel ones, and AutoEP refuses any
model parallelism from an mpu: "AutoEP does not currently support tensor model parallelism from mpu", a ValueError at
initialisation (run on 0.19.8 on four ranks). Groups made by the two keys of a JSON alone pass below ZeRO stage 3, and
split nothing; at stage 3 DeepSpeed asserts that it "does not support sequence parallelism yet" (read).

## Example
```yaml
zero:
  stage: 2
parallel:
  sequence_parallel_size: 2
deepspeed:
  expert_parallel:
    enabled: true
    autoep_size: 2
```

## Use instead
```yaml
zero:
  stage: 2
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
    "EX010",
    "experts-with-sequence-parallelism",
    upstream="raises",
    cites=(
        Cite("runtime/engine.py", "AutoEP does not currently support tensor model parallelism from mpu"),
        Cite("runtime/engine.py", "AutoEP with ZeRO Stage 3 does not support sequence parallelism yet"),
    ),
    since="0.19.2",
    when=lambda ctx: enabled(ctx) and ctx.sequence_parallel_size > 1,
)
def check(ctx: Context) -> Iterator[Finding]:
    """Ulysses' mpu is one too many."""
    key = "parallel.sequence_parallel_size"
    mesh_alone = ctx.run.kind == "deepspeed-json" and ctx.stage < 3
    yield ctx.finding(
        f"AutoEP does not run with a sequence degree of {ctx.sequence_parallel_size}",
        key,
        related=[("deepspeed.expert_parallel.enabled", "AutoEP is switched on here"), ("zero.stage", "the stage")],
        notes=["DeepSpeed refuses it at initialisation, after every rank has built the model"],
        fix=Fix(f"set {ctx.key(key)} to 1", {key: 1}, effect="whole sequences on every rank"),
        severity="warning" if mesh_alone else "error",
    )
