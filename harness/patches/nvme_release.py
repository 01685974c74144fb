# SPDX-License-Identifier: Apache-2.0
"""Releases the host memory of optimizer states on NVMe once they are written.

Upstream: With `pipeline_read` or `pipeline_write` the swapper writes a sub-group's new states in the first step and
keeps the tensors: `_complete_swap_out` says `buffer = torch.Tensor()` to a variable of its loop, which releases nothing
(`runtime/swap_tensor/pipelined_optimizer_swapper.py`; the plain swapper calls `release_swap_buffers`). 8 bytes a
parameter over all ranks stay in host memory until the second step reads each sub-group. Run on 0.16.9, 0.18.2, 0.19.3
and 0.19.8; in 0.14.5 the function is the same (read).

Patch: `_complete_swap_out` also releases the tensors of the sub-group, which nothing reads any more.

Gain: 8 bytes a parameter over all ranks during the first step, counted in `tests/training/patches/test_each_patch.py`.
"""

from __future__ import annotations

from typing import Any

from harness.patches.patch_registry import Patch, Target

_SWAPPER = "deepspeed.runtime.swap_tensor.pipelined_optimizer_swapper:PipelinedOptimizerSwapper"


def release_written_states() -> None:
    """For every engine of this process, from now on."""
    from deepspeed.runtime.swap_tensor.pipelined_optimizer_swapper import PipelinedOptimizerSwapper

    PipelinedOptimizerSwapper._complete_swap_out = _complete_and_release


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


PATCH = Patch(
    name="nvme-release",
    kind="memory",
    targets=(
        Target(f"{_SWAPPER}._complete_swap_out", "93fcac21af275428"),
        Target(
            "deepspeed.runtime.swap_tensor.optimizer_utils:OptimizerStateSwapInfo.release_memory", "30cb0abd73535d8d"
        ),
    ),
    remove_when="`_complete_swap_out` releases the state buffers of the sub-group",
    when="stage 3 with `offload_optimizer.device: nvme` and `pipeline_read` or `pipeline_write`",
    upstream="https://github.com/deepspeedai/DeepSpeed/pull/5700",
    is_needed=lambda run: run.stage == 3 and run.optimizer_device == "nvme" and run.is_swapping_pipelined,
    before_initialize=release_written_states,
)
