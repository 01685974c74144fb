"""AdamW told not to be AdamW.

## What it checks
`optimizer.type: AdamW` with `adam_w_mode: false`.

## Why it fails
The flag counts for `Adam` only. With `AdamW` it is taken out and forgotten, and the decay is decoupled all the same
(run on 0.19.8).

## Example
```yaml
zero:
  stage: 1
deepspeed:
  optimizer:
    type: AdamW
    params:
      lr: 1.0e-5
      weight_decay: 0.1
      adam_w_mode: false
```

## Use instead
```yaml
zero:
  stage: 1
deepspeed:
  optimizer:
    type: Adam
    params:
      lr: 1.0e-5
      weight_decay: 0.1
      adam_w_mode: false
```
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.findings import Finding, Fix
from harness.gates.registry import Cite, Context, gate


@gate(
    "OP008",
    "adamw-ignores-adam-w-mode",
    upstream="silent",
    cites=(Cite("runtime/engine.py", "self.optimizer_name() == ADAMW_OPTIMIZER or adam_w_mode"),),
    when=lambda ctx: ctx.optimizer.name == "adamw",
)
def check(ctx: Context) -> Iterator[Finding]:
    """The flag is Adam's."""
    if ctx.optimizer.params.get("adam_w_mode") is not False:
        return
    place = "deepspeed.optimizer.params.adam_w_mode"
    yield ctx.finding(
        f"{ctx.key(place)} has no effect on `AdamW`, only on `Adam`",
        place,
        label="has no effect",
        related=[("deepspeed.optimizer.type", "stays AdamW")],
        fix=Fix(f"remove {ctx.key(place)}, or write `Adam`", {place: None}, safe=True),
        severity="warning",
    )
