"""Quantized gradients where DeepSpeed refuses them.

## What it checks
`zero_quantized_gradients: true` at stage 3 with `zero.reduce_scatter: false`, or with the Muon optimizer.

## Why it fails
The optimizer of stage 3 asserts that reduce-scatter is on, and raises for Muon, when it is built (run on 0.19.8 with
`reduce_scatter: false`; Muon was read, since 0.18.9).

## Example
```yaml
zero:
  stage: 3
  reduce_scatter: false
deepspeed:
  zero_optimization:
    zero_quantized_gradients: true
```

## Use instead
```yaml
zero:
  stage: 3
  reduce_scatter: true
deepspeed:
  zero_optimization:
    zero_quantized_gradients: true
```
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.findings import Finding, Fix
from harness.gates.registry import Cite, Context, gate


@gate(
    "ZR022",
    "quantized-gradients-refused",
    upstream="asserts",
    cites=(
        Cite("runtime/zero/stage3.py", "when enable all_to_all_reduce, reduce_scatter should also be enabled"),
        Cite("runtime/zero/stage3.py", "Muon and all2all process group cannot be used together"),
    ),
    when=lambda ctx: ctx.stage == 3 and ctx.ds("zero_optimization.zero_quantized_gradients") is True,
)
def check(ctx: Context) -> Iterator[Finding]:
    """They replace reduce-scatter."""
    key = ctx.spec_key("zero_optimization.zero_quantized_gradients")
    if ctx.optimizer.name == "muon":
        what, where = "Muon", f"{ctx.optimizer.key}.type"
        fix = Fix(f"remove {ctx.key(key)}", {key: None}, effect="gradients cross the nodes in full precision")
    elif ctx.ds("zero_optimization.reduce_scatter", True) is False:
        what, where = "`reduce_scatter: false`", "zero.reduce_scatter"
        fix = Fix(f"set {ctx.key('zero.reduce_scatter')} to `true`", {"zero.reduce_scatter": True}, safe=True)
    else:
        return
    yield ctx.finding(f"{ctx.key(key)} does not go with {what}", key, related=[(where, "set here")], fix=fix)
