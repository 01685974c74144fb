"""A precision block that is not switched on.

## What it checks
A `bf16`, `bfloat16`, `fp16` or `torch_autocast` block without the key `enabled`, where no other block sets a precision.

## Why it fails
`enabled` is false unless it is written. The block is accepted, everything else in it is read, and the model is trained
in fp32 with twice the memory and a fraction of the speed (run on 0.19.8).

## Example
```yaml
deepspeed:
  torch_autocast:
    dtype: bfloat16
```

## Use instead
```yaml
deepspeed:
  torch_autocast:
    enabled: true
    dtype: bfloat16
```
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.findings import Finding, Fix
from harness.gates.registry import Cite, Context, gate

_BLOCKS = ("bf16", "bfloat16", "fp16", "torch_autocast")


@gate(
    "PR004",
    "precision-block-not-enabled",
    upstream="silent",
    cites=(
        Cite("runtime/precision_config.py", "enabled: bool = False"),
        Cite("runtime/constants.py", "TORCH_AUTOCAST_ENABLED_DEFAULT = False"),
    ),
    when=lambda ctx: any(ctx.has_key(block) for block in _BLOCKS),
)
def check(ctx: Context) -> Iterator[Finding]:
    """A block needs its switch."""
    if any(ctx.is_enabled(block) or ctx.is_auto(f"{block}.enabled") for block in _BLOCKS):
        return
    for block in _BLOCKS:
        written = ctx.ds(block)
        if not ctx.has_key(block) or ctx.has_key(f"{block}.enabled"):
            continue
        if not isinstance(written, dict) or any(str(name).startswith("enable") for name in written):
            continue  # another kind of value, or a misspelt `enabled`: told with the keys
        switch = ctx.spec_key(f"{block}.enabled")
        yield ctx.finding(
            f"{ctx.key('deepspeed.' + block)} has no `enabled`, so the model is trained in fp32",
            f"deepspeed.{block}",
            label="off",
            of_key=True,
            notes=["DeepSpeed takes an absent `enabled` for false and reads the rest of the block all the same"],
            fix=Fix(
                f"set {ctx.key(switch)} to true",
                {switch: True},
                effect="trains in 16-bit instead of fp32",
            ),
        )
