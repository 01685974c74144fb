"""Tensor parallelism inside experts.

## What it checks
`expert_parallel.expert_tensor_parallel_size` is 1.

## Why it fails
The key is reserved: "expert-internal tensor parallelism ... is not supported yet", a ValueError at initialisation
(run on 0.19.8, read in 0.19.3).

## Example
```yaml
deepspeed:
  expert_parallel:
    enabled: true
    autoep_size: 2
    expert_tensor_parallel_size: 2
```

## Use instead
```yaml
deepspeed:
  expert_parallel:
    enabled: true
    autoep_size: 2
```
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.findings import Finding, Fix
from harness.gates.experts.autoep import enabled, value
from harness.gates.registry import Cite, Context, gate


@gate(
    "EX008",
    "expert-internal-tensor-parallelism",
    upstream="raises",
    cites=(Cite("module_inject/auto_ep_folding.py", "expert-internal tensor parallelism and is not supported yet"),),
    since="0.19.3",
    when=enabled,
)
def check(ctx: Context) -> Iterator[Finding]:
    """Reserved for later."""
    size = value(ctx, "expert_tensor_parallel_size")
    if size == 1:
        return
    key = "deepspeed.expert_parallel.expert_tensor_parallel_size"
    yield ctx.finding(
        f"{ctx.key(key)} is {size}, DeepSpeed supports 1 only",
        key,
        notes=["DeepSpeed raises ValueError at initialisation"],
        fix=Fix(f"remove {ctx.key(key)}", {key: None}, effect="experts stay whole"),
    )
