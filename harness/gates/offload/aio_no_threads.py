"""Asynchronous I/O with no threads.

## What it checks
`aio.intra_op_parallelism` below 1 while the optimizer or the parameters are on NVMe.

## Why it fails
Lengths are rounded up to a multiple of it: "ZeroDivisionError: integer modulo by zero" when the swapper is built (run
on 0.19.8).

## Example
```yaml
zero:
  stage: 3
  offload_optimizer:
    device: nvme
    nvme_path: /local_nvme
deepspeed:
  aio:
    intra_op_parallelism: 0
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
    intra_op_parallelism: 1
```
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.findings import Finding, Fix
from harness.gates.registry import Cite, Context, gate


@gate(
    "OF022",
    "aio-without-threads",
    upstream="crashes",
    cites=(Cite("runtime/swap_tensor/optimizer_utils.py", "AIO_ALIGNED_BYTES * aio_config[AIO_INTRA_OP_PARALLELISM]"),),
    since="0.16.4",
    when=lambda ctx: (
        "nvme" in (ctx.offload_device("offload_optimizer"), ctx.offload_device("offload_param")) and ctx.stage == 3
    ),
)
def check(ctx: Context) -> Iterator[Finding]:
    """Lengths are multiples of the threads."""
    threads, key = ctx.ds("aio.intra_op_parallelism", 1), ctx.spec_key("aio.intra_op_parallelism")
    if not isinstance(threads, int) or threads > 0:
        return
    yield ctx.finding(
        f"{ctx.key(key)} is {threads}, so no thread reads or writes",
        key,
        fix=Fix(f"set {ctx.key(key)} to 1", {key: 1}, safe=True),
    )
