"""Random layer-token dropping inside a block that is off.

## What it checks
`data_efficiency.data_routing.random_ltd.enabled: true` while an outer `enabled` is not true.

## Why it fails
Here DeepSpeed looks at the innermost switch alone: token dropping is built although the blocks around it are off, and
fails with `KeyError: 'total_layer_num'` when its keys are missing (run on 0.19.8).

## Example
```json
{
  "train_micro_batch_size_per_gpu": 1,
  "data_efficiency": {
    "enabled": false,
    "data_routing": {"enabled": false, "random_ltd": {"enabled": true}}
  }
}
```

## Use instead
```json
{
  "train_micro_batch_size_per_gpu": 1,
  "data_efficiency": {
    "enabled": false,
    "data_routing": {"enabled": false, "random_ltd": {"enabled": false}}
  }
}
```
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.findings import Finding, Fix
from harness.gates.registry import Cite, Context, gate


@gate(
    "UT007",
    "token-dropping-that-is-on-after-all",
    upstream="wrong",
    cites=(Cite("runtime/engine.py", "def random_ltd_enabled(self):"),),
    when=lambda ctx: ctx.has_key("data_efficiency.data_routing.random_ltd"),
)
def check(ctx: Context) -> Iterator[Finding]:
    """Only the innermost switch counts."""
    inner = "data_efficiency.data_routing.random_ltd"
    off = [b for b in ("data_efficiency", "data_efficiency.data_routing") if not ctx.ds(f"{b}.enabled")]
    if not ctx.is_enabled(inner) or not off:
        return
    key = ctx.spec_key(f"{inner}.enabled")
    yield ctx.finding(
        f"{ctx.key(key)} drops tokens although {ctx.key(ctx.spec_key(f'{off[0]}.enabled'))} is not true",
        key,
        label="this switch alone is looked at",
        fix=Fix(f"set {ctx.key(key)} to false", {key: False}, effect="no tokens are dropped, as the outer switch says"),
    )
