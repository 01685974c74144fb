"""Parameters on NVMe that are read ahead twice.

## What it checks
`offload_param.device: nvme` at stage 3 with `stage3_prefetch_bucket_size` above 0, in a DeepSpeed JSON. Runs of the
harness are mended while they start and pass.

## Why it fails
DeepSpeed looks ahead for parameters to read, and takes one twice that is used twice within its reach: the head at the
turn from forward to backward, or a matrix that is recomputed. The run ends in its second step, or later, with "param 38
already assigned swap buffer id 14" (run on 0.19.8 with two and four Llama layers; with a bucket of 0, which reads
nothing ahead, they train). Parameters that `max_in_cpu` keeps in host memory are not read at all and hide it.

## Example
```json
{
  "train_micro_batch_size_per_gpu": 1,
  "bf16": {"enabled": true},
  "zero_optimization": {
    "stage": 3,
    "offload_param": {"device": "nvme", "nvme_path": "/local_nvme", "max_in_cpu": 0},
    "offload_optimizer": {"device": "cpu"}
  }
}
```

## Use instead
```json
{
  "train_micro_batch_size_per_gpu": 1,
  "bf16": {"enabled": true},
  "zero_optimization": {
    "stage": 3,
    "stage3_prefetch_bucket_size": 0,
    "offload_param": {"device": "nvme", "nvme_path": "/local_nvme", "max_in_cpu": 0},
    "offload_optimizer": {"device": "cpu"}
  }
}
```
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.findings import Finding, Fix
from harness.gates.registry import Cite, Context, gate


@gate(
    "OF031",
    "parameters-read-ahead-twice",
    upstream="asserts",
    cites=(Cite("runtime/zero/partitioned_param_coordinator.py", "swap_in_params.append(param)"),),
    when=lambda ctx: (
        ctx.stage == 3 and ctx.offload_device("offload_param") == "nvme" and ctx.run.kind == "deepspeed-json"
    ),
    unseen="needs shards of 1 MiB and more",
)
def check(ctx: Context) -> Iterator[Finding]:
    """Reading ahead and NVMe do not go together."""
    ahead = ctx.ds("zero_optimization.stage3_prefetch_bucket_size", 50_000_000)
    if not isinstance(ahead, int) or ahead <= 0:
        return
    key = "zero.stage3_prefetch_bucket_size"
    yield ctx.finding(
        "parameters on NVMe are read ahead, and one that is used twice within reach ends the run",
        key if ctx.source.has_key(key) else "zero.offload_param.device",
        severity="warning",
        notes=["DeepSpeed asserts `param ... already assigned swap buffer id ...` in the second step or later"],
        fix=Fix(f"set {ctx.key(key)} to 0", {key: 0}, effect="each read is waited for"),
    )
