# SPDX-License-Identifier: Apache-2.0
"""Keeps gradients above `reduce_bucket_size` allocated until the reduction stream has read them.

Upstream: At stages 1 and 2 a gradient that is larger than the bucket is reduced in place. With `overlap_comm` the
reduction stream divides it and copies its slices together, and `reduce_ipg_grads` frees it right after these kernels
are queued. The reduction stream is recorded on slices that this rank keeps and on what is all-reduced (pull request
7965). It is not recorded on a gradient that two other ranks share, nor on any with `reduce_scatter: false`: the
allocator gives their memory to the backward pass while it is still read, and wrong gradients may be reduced. Found by
the race detector of `harness simulate --races` with `llama-3.1-8b-zero2-two-nodes`; not seen on a GPU, since the
project had none.

Patch: Before `average_tensor` the gradient is recorded on the reduction stream, as DeepSpeed does with the optimizer on
the CPU. The recipe has six races without it and none with it
(`tests/training/simulation/test_race_detector.py`, in miniature).
"""

from __future__ import annotations

from typing import Any

from harness.patches.patch_registry import Patch, RankAgreement, Target

_OPTIMIZER = "deepspeed.runtime.zero.stage_1_and_2:DeepSpeedZeroOptimizer"


def record_oversized_gradients(engine: Any, _: RankAgreement) -> None:
    """From now on this engine records them. Without streams of the device nothing happens."""
    from deepspeed.accelerator import get_accelerator

    optimizer = engine.optimizer
    average_tensor = getattr(optimizer, "average_tensor", None)
    if average_tensor is None or not getattr(optimizer, "overlap_comm", False):
        return

    def average_recorded_tensor(tensor: Any, communication_data_type: Any) -> None:
        is_oversized = communication_data_type in optimizer.extra_large_param_to_reduce
        if is_oversized and not get_accelerator().resolves_data_dependency():
            tensor.record_stream(optimizer.reduction_stream)
        average_tensor(tensor, communication_data_type)

    optimizer.average_tensor = average_recorded_tensor


PATCH = Patch(
    name="zero12-oversized-grads",
    kind="correctness",
    targets=(
        Target(f"{_OPTIMIZER}.average_tensor", "e33e695d2f50eb00"),
        Target(f"{_OPTIMIZER}.reduce_ipg_grads", "acd6242b3ce416f3"),
        Target(f"{_OPTIMIZER}._record_gradient_stream", "3e481ab5aeed62c6"),
    ),
    remove_when="`average_tensor` records every gradient that it reduces outside the bucket",
    when="stages 1 and 2 with `overlap_comm`",
    upstream="https://github.com/deepspeedai/DeepSpeed/pull/7965",
    is_needed=lambda run: run.stage in (1, 2) and run.overlaps_reduction,
    on_engine=record_oversized_gradients,
)
