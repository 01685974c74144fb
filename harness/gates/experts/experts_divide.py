"""Experts that do not divide over the expert group.

## What it checks
The model's experts are a multiple of `expert_parallel.autoep_size`, and there are at least that many.

## Why it fails
"num_experts=3 in layer ... is not divisible by autoep_size=2", "autoep_size=8 exceeds num_experts=4": a ValueError at
initialisation, after every rank has built the model (run on 0.19.8).

## Example
```yaml
model:
  name_or_path: mistralai/Mixtral-8x7B-v0.1
deepspeed:
  expert_parallel:
    enabled: true
    autoep_size: 3
```

## Use instead
```yaml
model:
  name_or_path: mistralai/Mixtral-8x7B-v0.1
deepspeed:
  expert_parallel:
    enabled: true
    autoep_size: 2
```
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.findings import Finding, Fix
from harness.gates.experts.autoep import divisors, enabled, value
from harness.gates.registry import Cite, Context, gate


@gate(
    "EX005",
    "experts-not-divided-by-expert-groups",
    upstream="raises",
    cites=(
        Cite("module_inject/auto_ep_config.py", "Suggested autoep_size values"),
        Cite("module_inject/auto_ep_config.py", "Each rank must own at least one expert"),
    ),
    since="0.19.2",
    needs=("model facts",),
    when=enabled,
    unseen="its other half needs a transformers whose router AutoEP of 0.19.8 can replace",
)
def check(ctx: Context) -> Iterator[Finding]:
    """Whole experts on every rank."""
    experts, size = (ctx.model.experts if ctx.model else 0), value(ctx, "autoep_size")
    if not experts or size < 1 or experts % size == 0:
        return
    key, better = "deepspeed.expert_parallel.autoep_size", divisors(experts, size)[0]
    yield ctx.finding(
        f"{experts} experts do not divide over expert groups of {size}",
        key,
        related=[("model.name_or_path", "the model"), ("model.config", "the model")],
        notes=["DeepSpeed raises ValueError at initialisation, after every rank has built the model"],
        fix=Fix(f"set {ctx.key(key)} to {better}", {key: better}, effect="other memory and speed"),
    )
