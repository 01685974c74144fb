"""A communication format beside autocast.

## What it checks
`communication_data_type` with `torch_autocast.enabled` at ZeRO stages 1 to 3.

## Why it fails
Under autocast ZeRO reduces gradients in the format of autocast for the modules that it casts, and in the parameter's
own format for all others. `communication_data_type` is accepted and not looked at (read in 0.19.8).

## Example
```yaml
zero:
  stage: 2
deepspeed:
  communication_data_type: fp32
  torch_autocast:
    enabled: true
    dtype: bfloat16
```

## Use instead
```yaml
zero:
  stage: 2
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


@gate(
    "PR016",
    "autocast-ignores-communication-format",
    upstream="silent",
    since="0.17.2",
    cites=(Cite("runtime/zero/stage_1_and_2.py", "comm_dtypes = get_all_comm_dtypes("),),
    when=lambda ctx: ctx.is_enabled("torch_autocast") and ctx.stage > 0,
)
def check(ctx: Context) -> Iterator[Finding]:
    """Autocast brings its own."""
    if ctx.ds("communication_data_type") is None:
        return
    place = "deepspeed.communication_data_type"
    yield ctx.finding(
        f"{ctx.key(place)} has no effect beside {ctx.key('deepspeed.torch_autocast.enabled')}",
        place,
        label="not read",
        notes=["ZeRO reduces gradients in autocast's format for the modules that it casts"],
        fix=Fix(f"remove {ctx.key(place)}", {place: None}, safe=True),
        severity="warning",
    )
