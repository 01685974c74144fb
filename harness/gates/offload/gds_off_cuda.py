"""GPUDirect Storage without CUDA.

## What it checks
`aio.use_gds: true` on another accelerator than CUDA.

## Why it fails
DeepSpeed asserts it while it reads the configuration, on every rank, whether anything is on NVMe or not (run on
0.19.8).

## Example
```yaml
zero:
  stage: 3
  offload_optimizer:
    device: nvme
    nvme_path: /local_nvme
deepspeed:
  aio:
    use_gds: true
cluster:
  gpu: cpu
```

## Use instead
```yaml
zero:
  stage: 3
  offload_optimizer:
    device: nvme
    nvme_path: /local_nvme
deepspeed:
  aio:
    use_gds: true
cluster:
  gpu: H100-80GB
```
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.findings import Finding, Fix
from harness.gates.registry import Cite, Context, gate


@gate(
    "OF023",
    "gpu-direct-storage-off-cuda",
    upstream="asserts",
    cites=(Cite("runtime/swap_tensor/aio_config.py", "GDS currently only supported for CUDA accelerator"),),
    since="0.16.0",
    needs=("the accelerator",),
    when=lambda ctx: bool(ctx.ds("aio.use_gds", False)),
)
def check(ctx: Context) -> Iterator[Finding]:
    """The disk is read into GPU memory."""
    if ctx.accelerator == "cuda":
        return
    key = ctx.spec_key("aio.use_gds")
    yield ctx.finding(
        f"{ctx.key(key)} needs CUDA, this run is on `{ctx.accelerator}`",
        key,
        fix=Fix("remove it", {key: None}, safe=True, effect="reads and writes go through host memory"),
    )
