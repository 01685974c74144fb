"""AutoEP at stage 3 with ZeRO++.

## What it checks
An enabled `expert_parallel` block at ZeRO stage 3 with `zero_quantized_gradients` or a `zero_hpz_partition_size`
above 1.

## Why it fails
"AutoEP with ZeRO Stage 3 does not support zero_quantized_gradients yet" and "... hpZeRO secondary tensor groups yet":
assertions at initialisation (read in 0.19.3 and 0.19.8).

## Example
```yaml
zero:
  stage: 3
deepspeed:
  expert_parallel:
    enabled: true
    autoep_size: 2
  zero_optimization:
    zero_hpz_partition_size: 8
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
    "EX011",
    "experts-with-zero-plus-plus",
    upstream="asserts",
    cites=(
        Cite("runtime/engine.py", "AutoEP with ZeRO Stage 3 does not support zero_quantized_gradients yet"),
        Cite("runtime/engine.py", "does not support hpZeRO secondary tensor groups yet"),
    ),
    since="0.19.3",
    when=lambda ctx: enabled(ctx) and ctx.stage == 3,
)
def check(ctx: Context) -> Iterator[Finding]:
    """Not with quantized gradients, not with a second partition."""
    found = []
    if ctx.ds("zero_optimization.zero_quantized_gradients") is True:
        found.append("zero_quantized_gradients")
    if ctx.ds("zero_optimization.zero_hpz_partition_size", 1) != 1:
        found.append("zero_hpz_partition_size")
    for name in found:
        key = f"deepspeed.zero_optimization.{name}"
        yield ctx.finding(
            f"AutoEP at ZeRO stage 3 does not run with {ctx.key(key)}",
            key,
            related=[("deepspeed.expert_parallel.enabled", "AutoEP")],
            notes=["DeepSpeed asserts this at initialisation"],
            fix=Fix(f"remove {ctx.key(key)}", {key: None}, effect="more communication"),
        )
