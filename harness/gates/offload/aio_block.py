"""Asynchronous I/O that writes nothing.

## What it checks
`aio.block_size` that is not a multiple of 512, or `aio.queue_depth` below 1, while the optimizer or the parameters are
on NVMe at stage 3. A value such as 1000000 is easily written.

## Why it fails
DeepSpeed opens the files for direct access, which takes whole sectors only, and does not look at the result of a
request: the write is counted as done and the file stays empty. The next read aborts the process in C++, without a
Python traceback, or reads what an earlier run left behind (run on 0.19.8: the write of 4 MiB in blocks of 1000000 and
100000 bytes, in blocks of 0 and with a queue of 0; blocks of 1000448 work). Tensors of less than one block are not
touched, so small models hide it.

## Example
```yaml
zero:
  stage: 3
  offload_optimizer:
    device: nvme
    nvme_path: /local_nvme
deepspeed:
  aio:
    block_size: 1000000
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
    block_size: 1048576
```
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.findings import Finding, Fix
from harness.gates.registry import Cite, Context, gate


@gate(
    "OF030",
    "aio-that-writes-nothing",
    upstream="crashes",
    cites=(
        Cite("ops/csrc/aio/common/deepspeed_aio_common.cpp", "assert(n_completes >= min_completes);"),
        Cite("ops/csrc/aio/common/deepspeed_aio_common.cpp", "O_DIRECT"),
    ),
    when=lambda ctx: (
        "nvme" in (ctx.offload_device("offload_optimizer"), ctx.offload_device("offload_param")) and ctx.stage == 3
    ),
    unseen="needs shards of 1 MiB and more",
)
def check(ctx: Context) -> Iterator[Finding]:
    """Direct access takes whole sectors."""
    block, depth = ctx.ds("aio.block_size", 1 << 20), ctx.ds("aio.queue_depth", 8)
    notes = ["the write is counted as done, the read aborts the process or finds an earlier run's data"]
    if isinstance(block, int) and (block < 1 or block % 512):
        key, better = ctx.spec_key("aio.block_size"), max(1, round(block / (1 << 17))) << 17
        yield ctx.finding(
            f"{ctx.key(key)} is {block}, no multiple of 512: nothing is written to the disk",
            key,
            label="not whole sectors",
            notes=notes,
            fix=Fix(f"set {ctx.key(key)} to {better}", {key: better}, safe=True),
        )
    if isinstance(depth, int) and depth < 1:
        key = ctx.spec_key("aio.queue_depth")
        yield ctx.finding(
            f"{ctx.key(key)} is {depth}: nothing is written to the disk",
            key,
            label="no request at a time",
            notes=notes,
            fix=Fix(f"set {ctx.key(key)} to 8, DeepSpeed's default", {key: 8}, safe=True),
        )
