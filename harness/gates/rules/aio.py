# SPDX-License-Identifier: Apache-2.0
"""Asynchronous I/O and GPUDirect Storage, which read and write NVMe."""

from __future__ import annotations

from harness.gates.registry import Cite, Context, Findings, Fix, gate


def _is_below_1(value: object) -> bool:
    return isinstance(value, int) and value < 1


@gate(
    "OF022 aio-without-threads",
    upstream="crashes",
    cites=Cite("runtime/swap_tensor/optimizer_utils.py", "AIO_ALIGNED_BYTES * aio_config[AIO_INTRA_OP_PARALLELISM]"),
    since="0.16.4",
)
def aio_without_threads(ctx: Context) -> Findings:
    """Asynchronous I/O with no threads.

    `aio.intra_op_parallelism` below 1 while the optimizer or the parameters are on NVMe.

    Why: Lengths are rounded up to a multiple of it: "ZeroDivisionError: integer modulo by zero" when the swapper is
    built (run on 0.19.8).

    Example:
        zero.stage: 3
        zero.offload_optimizer.device: nvme
        zero.offload_optimizer.nvme_path: /local_nvme
        deepspeed.aio.intra_op_parallelism: 0
    """
    threads = ctx.ds("aio.intra_op_parallelism")
    if ctx.is_nvme_used and ctx.stage == 3 and _is_below_1(threads):
        key = "deepspeed.aio.intra_op_parallelism"
        yield ctx.finding(
            f"{ctx.key(key)} is {threads}, so no thread reads or writes",
            key,
            fix=ctx.fix_to_set(key, 1, safe=True),
        )


@gate(
    "OF023 gpu-direct-storage-off-cuda",
    upstream="asserts",
    cites=Cite("runtime/swap_tensor/aio_config.py", "GDS currently only supported for CUDA accelerator"),
    since="0.16.0",
    needs=("the accelerator",),
    when=lambda ctx: bool(ctx.ds("aio.use_gds")),
)
def gds_off_cuda(ctx: Context) -> Findings:
    """GPUDirect Storage without CUDA.

    `aio.use_gds: true` on another accelerator than CUDA.

    Why: DeepSpeed asserts it while it reads the configuration, on every rank, whether anything is on NVMe or not (run
    on 0.19.8).

    Example:
        precision.bf16: true
        zero.stage: 3
        zero.offload_optimizer.device: nvme
        zero.offload_optimizer.nvme_path: /local_nvme
        deepspeed.aio.use_gds: true
        cluster.gpu: cpu

    Use instead:
        precision.bf16: true
        zero.stage: 3
        zero.offload_optimizer.device: nvme
        zero.offload_optimizer.nvme_path: /local_nvme
        deepspeed.aio.use_gds: true
        cluster.gpu: H100-80GB
    """
    if ctx.accelerator != "cuda":
        key = "deepspeed.aio.use_gds"
        yield ctx.finding(
            f"{ctx.key(key)} needs CUDA, this run is on `{ctx.accelerator}`",
            key,
            fix=Fix("remove it", {key: None}, effect="reads and writes go through host memory"),
        )


def _may_read_aio(ctx: Context) -> bool:
    """May anything read the `aio` block, at whatever stage? (Below stage 3 OF001 or OF003 has a finding.)"""
    return bool(
        ctx.is_nvme_used
        or ctx.ds("checkpoint.writer")
        or ctx.ds("aio.use_gds")
        or ctx.is_auto("zero_optimization.offload_param.device")
    )


@gate(
    "OF024 aio-without-nvme",
    severity="info",
    unread="nothing is on NVMe",
    cites=Cite("runtime/engine.py", "aio_config=self.aio_config()"),
)
def aio_without_nvme(ctx: Context) -> Findings:
    """Settings for NVMe without NVMe.

    An `aio` block when neither the optimizer nor the parameters are on NVMe at stage 3, and no checkpoint writer is
    configured, which reads it too.

    Why: Nothing reads the block (read in 0.19.8). It is often left over from a file with NVMe, or stands next to a
    `device: nvme` that this stage does not read.

    Example:
        zero.stage: 3
        zero.offload_optimizer.device: cpu
        deepspeed.aio.queue_depth: 16
    """
    if isinstance(ctx.ds("aio"), dict) and not _may_read_aio(ctx):
        key = "deepspeed.aio"
        yield ctx.unread(
            f"{ctx.key(key)} is read when something is on NVMe, and nothing is",
            key,
            fix=Fix("remove it", {key: None}, safe=True),
            of_key=True,
        )


@gate(
    "OF030 aio-that-writes-nothing",
    upstream="crashes",
    cites=(
        Cite("ops/csrc/aio/common/deepspeed_aio_common.cpp", "assert(n_completes >= min_completes);"),
        Cite("ops/csrc/aio/common/deepspeed_aio_common.cpp", "O_DIRECT"),
    ),
    when=lambda ctx: ctx.is_nvme_used and ctx.stage == 3,
    unseen="needs shards of 1 MiB and more",
)
def aio_without_writes(ctx: Context) -> Findings:
    """Asynchronous I/O that writes nothing.

    `aio.block_size` that is not a multiple of 512, or `aio.queue_depth` below 1, while the optimizer or the parameters
    are on NVMe at stage 3. 1000000 is such a value.

    Why: DeepSpeed opens the files with O_DIRECT, which takes whole sectors only, and ignores the result of a request:
    it counts the write as done, and the file stays empty. The next read aborts the process in C++, without a Python
    traceback, or reads what an earlier run left behind (run on 0.19.8: the write of 4 MiB in blocks of 1000000 and
    100000 bytes, in blocks of 0 and with a queue of 0; blocks of 1000448 work). Tensors of less than one block are not
    touched, so small models hide it.

    Example:
        zero.stage: 3
        zero.offload_optimizer.device: nvme
        zero.offload_optimizer.nvme_path: /local_nvme
        deepspeed.aio.block_size: 1000000
    """
    block = ctx.ds("aio.block_size", 1 << 20)
    notes = ["the write is counted as done, the read aborts the process or finds an earlier run's data"]
    if isinstance(block, int) and (block < 1 or block % 512):
        key = "deepspeed.aio.block_size"
        new_block = max(1, round(block / (1 << 17))) << 17  # the nearest multiple of 128 KiB
        yield ctx.finding(
            f"{ctx.key(key)} is {block}, no multiple of 512: nothing is written to the disk",
            key,
            label="not whole sectors",
            notes=notes,
            fix=ctx.fix_to_set(key, new_block, safe=True),
        )
    depth = ctx.ds("aio.queue_depth")
    if _is_below_1(depth):
        key = "deepspeed.aio.queue_depth"
        yield ctx.finding(
            f"{ctx.key(key)} is {depth}: nothing is written to the disk",
            key,
            label="no request at a time",
            notes=notes,
            fix=ctx.fix_to_set(key, 8, "DeepSpeed's default", safe=True),
        )
