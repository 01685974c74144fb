"""Load balancing that AutoEP does not have.

## What it checks
`expert_parallel.load_balance_coeff` is null or left out.

## Why it fails
"load_balance_coeff=0.01 is not supported in this AutoEP build": a ValueError while the configuration is read, even
where AutoEP is off (run on 0.19.8).

## Example
```yaml
deepspeed:
  expert_parallel:
    enabled: true
    autoep_size: 2
    load_balance_coeff: 0.01
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
from harness.gates.registry import Cite, Context, gate


@gate(
    "EX007",
    "expert-load-balancing-refused",
    upstream="raises",
    cites=(Cite("module_inject/auto_ep_presets/base.py", "is not supported in this AutoEP build"),),
    since="0.19.2",
    when=lambda ctx: ctx.ds("expert_parallel.load_balance_coeff") is not None,
)
def check(ctx: Context) -> Iterator[Finding]:
    """Null, or nothing."""
    key = "deepspeed.expert_parallel.load_balance_coeff"
    yield ctx.finding(
        f"AutoEP does not take {ctx.key(key)} {ctx.ds('expert_parallel.load_balance_coeff')}",
        key,
        notes=["DeepSpeed raises ValueError while it reads the configuration"],
        fix=Fix(f"remove {ctx.key(key)}", {key: None}, effect="no auxiliary loss from AutoEP"),
    )
