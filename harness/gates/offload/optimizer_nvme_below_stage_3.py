"""Optimizer offload to NVMe below ZeRO stage 3.

## What it checks
`zero.offload_optimizer.device: nvme` with `zero.stage` 1 or 2.

## Why it fails
At stages 1 and 2 DeepSpeed asks only whether the device is other than `none` and keeps the optimizer in host memory:
no file is written and `nvme_path` is not looked at (run on 0.19.8). The host needs the memory that the user meant to
spare.

## Example
```yaml
zero:
  stage: 2
  offload_optimizer:
    device: nvme
    nvme_path: /local_nvme
```

## Use instead
```yaml
zero:
  stage: 3
  offload_optimizer:
    device: nvme
    nvme_path: /local_nvme
```
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.findings import Finding, Fix
from harness.gates.registry import Cite, Context, gate


@gate(
    "OF003",
    "nvme-optimizer-below-stage-3",
    upstream="silent",
    cites=(Cite("runtime/zero/stage_1_and_2.py", "offload_optimizer_config.device != OffloadDeviceEnum.none"),),
)
def check(ctx: Context) -> Iterator[Finding]:
    """NVMe is a feature of stage 3."""
    zero = ctx.run.spec.zero
    if zero.offload_optimizer is None or zero.offload_optimizer.device != "nvme" or zero.stage not in (1, 2):
        return
    yield ctx.finding(
        f"the optimizer stays in host memory at ZeRO stage {zero.stage}, NVMe needs stage 3",
        "zero.offload_optimizer.device",
        label="acts as `cpu`",
        related=[("zero.stage", "the stage is set here")],
        notes=["DeepSpeed accepts this in silence and writes nothing to the disk"],
        fix=Fix(
            f"set {ctx.key('zero.stage')} to 3",
            {"zero.stage": 3},
            effect="the same steps with sharded parameters and the optimizer on NVMe",
        ),
    )
