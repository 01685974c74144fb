"""Contiguous gradients cannot be switched off with offload.

## What it checks
`zero.contiguous_gradients: false` at stage 1 or 2 with an offloaded optimizer.

## Why it fails
Offload copies gradients out of the contiguous buffer, so DeepSpeed switches it on whatever the file says (read in
0.19.8; the losses are the same).

## Example
```yaml
zero:
  stage: 2
  contiguous_gradients: false
  offload_optimizer:
    device: cpu
```

## Use instead
```yaml
zero:
  stage: 2
  contiguous_gradients: true
  offload_optimizer:
    device: cpu
```
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.findings import Finding, Fix
from harness.gates.registry import Cite, Context, gate


@gate(
    "OF028",
    "contiguous-gradients-forced-on",
    upstream="silent",
    cites=(
        Cite("runtime/zero/stage_1_and_2.py", "self.contiguous_gradients = contiguous_gradients or self.cpu_offload"),
    ),
    when=lambda ctx: ctx.stage in (1, 2) and ctx.offload_device("offload_optimizer") != "none",
)
def check(ctx: Context) -> Iterator[Finding]:
    """Offload copies out of that buffer."""
    if ctx.ds("zero_optimization.contiguous_gradients", True) is not False:
        return
    yield ctx.finding(
        f"{ctx.key('zero.contiguous_gradients')} is `false`, and an offloaded optimizer switches it on",
        "zero.contiguous_gradients",
        label="has no effect",
        related=[("zero.offload_optimizer.device", "offloaded here")],
        fix=Fix(
            f"set {ctx.key('zero.contiguous_gradients')} to `true`",
            {"zero.contiguous_gradients": True},
            safe=True,
        ),
        severity="info",
    )
