"""Parameters on NVMe that are read ahead, each once.

DeepSpeed 0.19.8 looks ahead in its queue of uses for parameters to read. One that is used twice within its reach, such
as the head at the turn from forward to backward, or a matrix that is recomputed, is asked for twice in one go, which
ends the run: "param 38 already assigned swap buffer id 14" (`partitioned_param_coordinator.py`
`__prefetch_nvme_param_partitions`; it reaches further the larger what is on its way is).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch


def drop_duplicate_prefetches(model: torch.nn.Module) -> None:
    """From now on no parameter of this model is swapped in twice in one go. Without NVMe nothing changes."""
    found = (getattr(parameter, "nvme_swapper", None) for parameter in model.parameters())
    for swapper in {id(one): one for one in found if one is not None}.values():
        _deduplicate_swap_in(swapper)


def _deduplicate_swap_in(swapper: Any) -> None:
    swap_in = swapper.swap_in

    def once(params: Sequence[Any], async_op: bool = True, swap_in_buffers: Any = None) -> None:
        if swap_in_buffers is None:
            params = list({param.ds_id: param for param in params}.values())
        swap_in(params, async_op=async_op, swap_in_buffers=swap_in_buffers)

    swapper.swap_in = once
