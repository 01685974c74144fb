"""Prefetches each parameter on NVMe once.

DeepSpeed 0.19.8 looks ahead in its queue of uses for parameters to read. One that is used twice within its reach, such
as the head between forward and backward, or a matrix that is recomputed, is requested twice in one call, which ends the
run: "param 38 already assigned swap buffer id 14" (`partitioned_param_coordinator.py`
`__prefetch_nvme_param_partitions`; its reach grows with the reads in flight).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch


def drop_duplicate_prefetches(model: torch.nn.Module) -> None:
    """From now on no parameter of this model is swapped in twice by one call. Without NVMe nothing changes."""
    swappers = (getattr(parameter, "nvme_swapper", None) for parameter in model.parameters())
    for swapper in {id(swapper): swapper for swapper in swappers if swapper is not None}.values():
        _deduplicate_swap_in(swapper)


def _deduplicate_swap_in(swapper: Any) -> None:
    swap_in = swapper.swap_in

    def once(params: Sequence[Any], async_op: bool = True, swap_in_buffers: Any = None) -> None:
        if swap_in_buffers is None:
            params = list({param.ds_id: param for param in params}.values())
        swap_in(params, async_op=async_op, swap_in_buffers=swap_in_buffers)

    swapper.swap_in = once
