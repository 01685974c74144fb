# SPDX-License-Identifier: Apache-2.0
"""The allocator of pinned host memory."""

from __future__ import annotations

from harness.gates.registry import Cite, Context, Findings, Fix, spec_gate
from harness.spec.pinned_memory import BACKEND_VARIABLE, pins_natively

_KEY = "zero.pin_memory_backend"


def _take_torch(ctx: Context) -> Fix:
    key = _KEY if ctx.run.spec.zero.pin_memory_backend == "native" else f"launch.env.{BACKEND_VARIABLE}"
    effect = "torch rounds each pinned block up to a power of two, and the host needs more memory"
    return Fix("let torch pin the memory", {key: "torch"}, effect=effect)


@spec_gate(
    "OF033 native-pinning-not-there",
    severity="warning",
    until="0.19.5",
    when=lambda ctx: pins_natively(ctx.run.spec.zero, ctx.run.spec.launch.env),
)
def native_pinning_not_there(ctx: Context) -> Findings:
    """DeepSpeed's own pinned memory before 0.19.6.

    `zero.pin_memory_backend: native` (or DS_PIN_MEMORY_BACKEND in `launch.env`) with DeepSpeed 0.19.5 or older.

    Why: These releases do not read the variable (read in their source): torch pins the memory and rounds each block up
    to a power of two, so that a host needs more than planned.

    Example:
        zero.stage: 3
        zero.offload_optimizer.device: cpu
        zero.pin_memory_backend: native
    """
    key = _KEY if ctx.run.spec.zero.pin_memory_backend == "native" else f"launch.env.{BACKEND_VARIABLE}"
    yield ctx.finding(
        f"DeepSpeed {ctx.target.text} has no allocator of pinned memory; it came with 0.19.6",
        key,
        notes=["torch's allocator pins the buffers, and rounds each up to a power of two"],
        fix=_take_torch(ctx),
    )


@spec_gate(
    "OF034 native-pinning-of-nothing",
    severity="warning",
    cites=Cite("utils/pin_memory.py", "DS_PIN_MEMORY_BACKEND", since="0.19.6"),
    when=lambda ctx: ctx.run.spec.zero.pin_memory_backend == "native",
)
def native_pinning_of_nothing(ctx: Context) -> Findings:
    """An allocator of pinned memory without pinned buffers.

    `zero.pin_memory_backend: native` without offload, or with `pin_memory: false` wherever something is offloaded.

    Why: DeepSpeed pins only the buffers of offload; the op is compiled and loaded for nothing.

    Example:
        zero.stage: 3
        zero.pin_memory_backend: native
    """
    zero = ctx.run.spec.zero
    offloads = [each for each in (zero.offload_optimizer, zero.offload_param) if each and each.device != "none"]
    if not any(each.pin_memory for each in offloads):
        what = "nothing is offloaded" if not offloads else "`pin_memory` is off"
        yield ctx.finding(f"`native` pins no buffer here: {what}", _KEY, fix=_take_torch(ctx))


@spec_gate(
    "OF035 native-pinning-keeps-shards",
    severity="warning",
    cites=Cite("utils/pin_memory.py", "locked = base[:numel]", since="0.19.6"),
    when=lambda ctx: (
        pins_natively(ctx.run.spec.zero, ctx.run.spec.launch.env)
        and ctx.offload_device("offload_param") in ("cpu", "nvme")
    ),
)
def native_pinning_keeps_shards(ctx: Context) -> Findings:
    """DeepSpeed's own pinned memory with offloaded parameters.

    `zero.pin_memory_backend: native` with `zero.offload_param`, to the CPU or to NVMe.

    Why: Every shard is first pinned separately, as a view of its block. When the shards move into one flat buffer or to
    NVMe, DeepSpeed replaces `ds_tensor.data`; the view still holds its block, which stays locked: another 2 P / N bytes
    a rank, on NVMe too (run on 0.19.8). torch's allocator has no view and frees it. The plan counts the blocks.

    Example:
        zero.stage: 3
        zero.offload_param.device: cpu
        zero.offload_optimizer.device: cpu
        zero.pin_memory_backend: native
    """
    yield ctx.finding(
        "`native` keeps a second copy of all parameter shards locked in host memory",
        _KEY,
        related=[("zero.offload_param.device", "parameters are offloaded here")],
        notes=["DeepSpeed replaces `ds_tensor.data`, and the view of the first block keeps it"],
        fix=_take_torch(ctx),
    )
