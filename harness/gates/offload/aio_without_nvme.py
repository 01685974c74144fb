"""Settings for NVMe without NVMe.

## What it checks
An `aio` block when neither the optimizer nor the parameters are on NVMe at stage 3, and no checkpoint writer is
configured, which reads it too.

## Why it fails
Nothing reads the block (read in 0.19.8). It is often left over from a file with NVMe, or stands beside a `device: nvme`
that its stage does not look at.

## Example
```yaml
zero:
  stage: 3
  offload_optimizer:
    device: cpu
deepspeed:
  aio:
    queue_depth: 16
```

## Use instead
```yaml
zero:
  stage: 3
  offload_optimizer:
    device: cpu
```
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.findings import Finding, Fix
from harness.gates.registry import Cite, Context, gate


@gate(
    "OF024",
    "aio-without-nvme",
    upstream="silent",
    cites=(Cite("runtime/engine.py", "aio_config=self.aio_config()"),),
    when=lambda ctx: isinstance(ctx.ds("aio"), dict),
)
def check(ctx: Context) -> Iterator[Finding]:
    """Only swapping reads it."""
    if "nvme" in (ctx.offload_device("offload_optimizer"), ctx.offload_device("offload_param")) or ctx.ds(
        "checkpoint.writer"
    ):
        return  # below stage 3 OF001 or OF003 speaks
    if ctx.ds("aio.use_gds") or ctx.is_auto("zero_optimization.offload_param.device"):
        return
    key = ctx.spec_key("aio")
    yield ctx.finding(
        f"{ctx.key(key)} is read when something is on NVMe, and nothing is",
        key,
        label="has no effect",
        fix=Fix("remove it", {key: None}, safe=True),
        severity="info",
        of_key=True,
    )
