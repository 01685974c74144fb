# SPDX-License-Identifier: Apache-2.0
"""Prefetches each parameter on NVMe once.

Upstream: The coordinator looks ahead in its queue of uses for parameters to read; its reach grows with the reads in
flight. A parameter that is used twice within that reach (the head between forward and backward, a matrix that is
recomputed) is requested twice in one call, which ends the run: "param 38 already assigned swap buffer id 14"
(`partitioned_param_coordinator.py`, `__prefetch_nvme_param_partitions`).

Patch: `swap_in` drops the repeated parameters of one call.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from harness.patches.patch_registry import Patch, RankAgreement, Target


def drop_duplicate_prefetches(engine: Any, _: RankAgreement) -> None:
    """From now on no parameter of this engine is swapped in twice by one call."""
    swappers = (getattr(parameter, "nvme_swapper", None) for parameter in engine.module.parameters())
    for swapper in {id(swapper): swapper for swapper in swappers if swapper is not None}.values():
        _deduplicate_swap_in(swapper)


def _deduplicate_swap_in(swapper: Any) -> None:
    swap_in = swapper.swap_in

    def once(params: Sequence[Any], async_op: bool = True, swap_in_buffers: Any = None) -> None:
        if swap_in_buffers is None:
            params = list({param.ds_id: param for param in params}.values())
        swap_in(params, async_op=async_op, swap_in_buffers=swap_in_buffers)

    swapper.swap_in = once


PATCH = Patch(
    name="nvme-prefetch-duplicate",
    kind="correctness",
    targets=(
        Target(
            "deepspeed.runtime.swap_tensor.partitioned_param_swapper:AsyncPartitionedParameterSwapper.swap_in",
            "2e81a129cb51e284",
        ),
        Target(
            "deepspeed.runtime.zero.partitioned_param_coordinator:"
            "PartitionedParameterCoordinator.__prefetch_nvme_param_partitions",
            "434a1d6d8dfeeca6",
        ),
    ),
    remove_when="`__prefetch_nvme_param_partitions` requests each parameter once",
    when="stage 3 with `offload_param.device: nvme`",
    is_needed=lambda run: run.stage == 3 and run.param_device == "nvme",
    on_engine=drop_duplicate_prefetches,
)
