"""An optimizer block without a type.

## What it checks
A DeepSpeed `optimizer` block without `type`, or with an empty one.

## Why it fails
DeepSpeed then has no optimizer at all: ZeRO stages 1 and 2 fail when the engine is built (`zero stage 2 requires an
optimizer`), stage 3 and stage 0 at the first backward (run on 0.19.8). With an optimizer of the script's own the block
does nothing.

## Example
```yaml
zero:
  stage: 2
deepspeed:
  optimizer:
    params:
      lr: 1.0e-5
```

## Use instead
```yaml
zero:
  stage: 2
deepspeed:
  optimizer:
    type: AdamW
    params:
      lr: 1.0e-5
```
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.findings import Finding, Fix
from harness.gates.registry import Cite, Context, gate


@gate(
    "OP002",
    "optimizer-without-type",
    upstream="silent",
    cites=(
        Cite("runtime/config.py", "return OPTIMIZER_TYPE_DEFAULT"),
        Cite("runtime/engine.py", "zero stage {} requires an optimizer"),
    ),
    when=lambda ctx: ctx.has_key("optimizer"),
)
def check(ctx: Context) -> Iterator[Finding]:
    """A block needs a name."""
    block = ctx.ds("optimizer")
    if ctx.optimizer.key != "deepspeed.optimizer" or not isinstance(block, dict):
        return
    if isinstance(ctx.optimizer.type, str) or ctx.is_auto("optimizer.type"):
        return
    if any(str(name).lower() in ("typ", "name", "types", "kind") for name in block):
        return  # a misspelt `type` is told with the keys
    place = "deepspeed.optimizer.type"
    yield ctx.finding(
        f"{ctx.key('deepspeed.optimizer')} has no `type`, so DeepSpeed builds no optimizer",
        "deepspeed.optimizer",
        of_key=True,
        fix=Fix(f"set {ctx.key(place)} to `AdamW`", {place: "AdamW"}, effect="trains with AdamW"),
    )
