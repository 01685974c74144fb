"""A checkpoint engine switched on by an empty value.

## What it checks
`datastates_ckpt` that is neither `false` nor a block with settings.

## Why it fails
Anything but `false` switches this engine on: null, an empty block, an empty list. Without its package the engine
fails with `Please install DataStates` (run on 0.19.8).

## Example
```json
{
  "train_micro_batch_size_per_gpu": 1,
  "datastates_ckpt": {}
}
```

## Use instead
```json
{
  "train_micro_batch_size_per_gpu": 1,
  "datastates_ckpt": false
}
```
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.findings import Finding, Fix
from harness.gates.registry import Cite, Context, gate


@gate(
    "UT014",
    "datastates-checkpoints-by-accident",
    upstream="raises",
    cites=(Cite("datastates/config.py", "is not False"),),
    since="0.18.1",
)
def check(ctx: Context) -> Iterator[Finding]:
    """On unless it is false."""
    if not ctx.has_key("datastates_ckpt"):
        return
    value = ctx.run.spec.deepspeed.get("datastates_ckpt", None)
    if value is False or (isinstance(value, dict) and value):
        return
    key = ctx.spec_key("datastates_ckpt")
    yield ctx.finding(
        f"{ctx.key(key)} is on for anything but `false`, and needs the package DataStates",
        key,
        of_key=True,
        fix=Fix(f"set {ctx.key(key)} to false", {key: False}, safe=True, effect="checkpoints by `torch.save`"),
    )
