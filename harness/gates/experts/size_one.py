"""AutoEP over one rank.

## What it checks
`expert_parallel.enabled` with an `autoep_size` of 1, which is the default.

## Why it fails
The layers are replaced, but every rank owns all experts and nothing is sent anywhere. DeepSpeed warns and trains (run
on 0.19.8). A misspelt `autoep_size` ends here too.

## Example
```yaml
deepspeed:
  expert_parallel:
    enabled: true
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
    "EX002",
    "expert-parallelism-over-one-rank",
    upstream="silent",
    cites=(Cite("module_inject/auto_ep_config.py", "autoep_size=1 means every rank owns all experts"),),
    since="0.19.2",
    when=lambda ctx: enabled(ctx) and ctx.tensor_parallel_size == 1,
)
def check(ctx: Context) -> Iterator[Finding]:
    """One rank shares with nobody."""
    if value(ctx, "autoep_size") != 1 or ctx.world_size == 1:
        return
    key, switch = "deepspeed.expert_parallel.autoep_size", "deepspeed.expert_parallel.enabled"
    yield ctx.finding(
        f"AutoEP is on, but {ctx.key(key)} is 1: every rank owns all experts",
        key if ctx.has_key("expert_parallel.autoep_size") else switch,
        fix=Fix(f"set {ctx.key(key)}", {key: 2}, effect="deals the experts out to two ranks"),
        severity="warning",
    )
