"""A switch of an optimizer long gone.

## What it checks
`optimizer.legacy_fusion: true`.

## Why it fails
It makes the 16-bit optimizer of stage 0 call FusedAdam the way Apex wanted it years ago: `RuntimeError: FusedAdam has
been updated` at the first step. Everywhere else it is not read (run on 0.19.8).

## Example
```yaml
precision:
  bf16: true
zero:
  stage: 1
deepspeed:
  optimizer:
    type: AdamW
    legacy_fusion: true
    params:
      lr: 1.0e-5
```

## Use instead
```yaml
precision:
  bf16: true
zero:
  stage: 1
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
    "OP017",
    "legacy-fusion-left-on",
    upstream="silent",
    cites=(Cite("runtime/engine.py", "fused_adam_legacy=self.optimizer_legacy_fusion(),"),),
    when=lambda ctx: ctx.ds("optimizer.legacy_fusion") is True,
)
def check(ctx: Context) -> Iterator[Finding]:
    """Nothing reads it that could use it."""
    params = ctx.optimizer.params
    own = ctx.optimizer.name in ("adam", "adamw") and not params.get("torch_adam")
    fused = own and ctx.offload_device("offload_optimizer") == "none"
    crashes = fused and ctx.stage == 0 and (ctx.is_enabled("fp16") or ctx.is_enabled("bf16"))
    place = "deepspeed.optimizer.legacy_fusion"
    yield ctx.finding(
        f"{ctx.key(place)} makes the first step fail"
        if crashes
        else f"{ctx.key(place)} is read at stage 0 in 16-bit only",
        place,
        label="" if crashes else "has no effect",
        fix=Fix(f"remove {ctx.key(place)}", {place: None}, safe=True),
        severity="error" if crashes else "warning",
    )
