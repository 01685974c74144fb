"""Expert parallelism that is not switched on.

## What it checks
An `expert_parallel` block with `autoep_size` above 1 and no `enabled`.

## Why it fails
AutoEP is off unless the block says `enabled: true`. Without it the block is ignored in silence: every rank holds all
experts and trains data parallel (run on 0.19.8).

## Example
```yaml
deepspeed:
  expert_parallel:
    autoep_size: 2
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
from harness.gates.experts.autoep import value
from harness.gates.registry import Cite, Context, gate


@gate(
    "EX001",
    "expert-parallelism-not-enabled",
    upstream="silent",
    cites=(Cite("module_inject/auto_ep_config.py", 'config.enabled = param_dict.get("enabled", False)'),),
    since="0.19.2",
    when=lambda ctx: ctx.has_key("expert_parallel") and not ctx.has_key("expert_parallel.enabled"),
)
def check(ctx: Context) -> Iterator[Finding]:
    """Off unless switched on."""
    size = value(ctx, "autoep_size")
    if size < 2:
        return
    key, switch = "deepspeed.expert_parallel.autoep_size", "deepspeed.expert_parallel.enabled"
    yield ctx.finding(
        f"{ctx.key(key)} {size} has no effect without {ctx.key(switch)}",
        key,
        label="the block is ignored",
        notes=["every rank holds all experts and trains data parallel"],
        fix=Fix(f"set {ctx.key(switch)} to true", {switch: True}, effect=f"deals the experts out to {size} ranks"),
    )
