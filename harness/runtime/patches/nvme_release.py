"""Releases the host memory of optimizer states on NVMe once they are written.

With `pipeline_read` or `pipeline_write` DeepSpeed's swapper writes a sub-group's new states in the first step and keeps
the tensors: `_complete_swap_out` says `buffer = torch.Tensor()` to a variable of its loop, which releases nothing
(`runtime/swap_tensor/pipelined_optimizer_swapper.py`; the plain swapper calls `release_swap_buffers`). 8 bytes a
parameter over all ranks, until the second step reads each sub-group. Afterwards the tensors are views of swap buffers
that other sub-groups use. Seen on 0.16.9, 0.18.2, 0.19.3 and 0.19.8; in 0.14.5 the function is the same (read).

`HARNESS_NO_PATCH=nvme-release` leaves DeepSpeed as it is.
"""

from __future__ import annotations

import inspect
import os
import textwrap
from typing import Any

import deepspeed
from deepspeed.runtime.swap_tensor import optimizer_utils, pipelined_optimizer_swapper

PATCH_NAME = "nvme-release"
DISABLE_VARIABLE = "HARNESS_NO_PATCH"
"""An environment variable: names of patches, with commas between, that are not installed."""
EXPECTED_SOURCE = """\
def _complete_swap_out(self, swap_out_type):
    self.swap_ops[swap_out_type].wait()
    for buffer in self.swap_ops[swap_out_type].state_buffers:
        buffer = torch.Tensor()
    self.swap_buffer_manager.free(self.swap_ops[swap_out_type].allocated_buffers)
    self.swap_ops[swap_out_type] = None
"""
_TARGET = "_complete_swap_out"


def release_written_states(ds_config: dict[str, Any]) -> str | None:
    """Install it for every engine of this process that is built from now on. Returns why it is not installed; None: it
    is, or the configuration has no pipelined swapping.
    """
    zero = ds_config.get("zero_optimization") or {}
    offload = zero.get("offload_optimizer") or {}
    pipelined = offload.get("pipeline_read") or offload.get("pipeline_write")
    if zero.get("stage") != 3 or offload.get("device") != "nvme" or not pipelined:
        return None
    if PATCH_NAME in os.environ.get(DISABLE_VARIABLE, "").replace(" ", "").split(","):
        return f"{DISABLE_VARIABLE} names it"
    swapper = pipelined_optimizer_swapper.PipelinedOptimizerSwapper
    original = getattr(swapper, _TARGET, None)
    if original is _complete_and_release:
        return None
    if original is None or _source_of(original) != EXPECTED_SOURCE or not _can_release():
        return f"`{_TARGET}` of DeepSpeed {deepspeed.__version__} is not the one that it was written for"
    setattr(swapper, _TARGET, _complete_and_release)
    return None


def _complete_and_release(self: Any, swap_out_type: str) -> None:
    """DeepSpeed's method; then the sub-group's tensors release their memory, as with the plain swapper.

    Nothing reads them any more: they are written, the 16-bit weights were cast from them before the write began, and
    the prefetched sub-group is never the one whose write is completed.
    """
    swap_op = self.swap_ops[swap_out_type]
    swap_op.wait()
    self.swap_buffer_manager.free(swap_op.allocated_buffers)
    self.swap_ops[swap_out_type] = None
    swap_op.param_info.release_memory()


def _source_of(function: Any) -> str:
    try:
        return textwrap.dedent(inspect.getsource(function))
    except (OSError, TypeError):
        return ""


def _can_release() -> bool:
    return callable(getattr(optimizer_utils.OptimizerStateSwapInfo, "release_memory", None))
