"""Gradients that stay in host memory where the optimizer's states are on NVMe.

DeepSpeed 0.19.8 has the gradients of a rank's partition in host memory until the step (`grad_partitions_flat_buffer`).
With the optimizer on NVMe it also writes them to the disk, in fp32, and reads them back in the step: 8 bytes a
parameter, a quarter of the bytes of such a step. Small ones it leaves in memory (`unswapped_gradients`); here all of
them stay there, as views of the existing buffer, cast to fp32 as they are copied.
"""

from __future__ import annotations

from itertools import accumulate
from typing import Any

import torch


def keep_grads_in_host_memory(engine: Any) -> None:
    """From now on no gradient of this engine is written to a disk; the step computes with the same numbers. Without
    an optimizer on NVMe nothing changes. Muon and ZenFlow, which step with something else, are left alone.

    A parameter that got no gradient is stepped with none: DeepSpeed would give it its last one again.
    """
    zero = engine.optimizer
    swapper = getattr(zero, "optimizer_swapper", None)
    if swapper is None or getattr(zero, "use_muon", False) or getattr(zero, "zenflow", False):
        return
    flat: torch.Tensor = zero.grad_partitions_flat_buffer
    sizes = [sum(parameter.partition_numel() for parameter in group) for group in zero.fp16_groups]
    starts = accumulate(sizes, initial=0)
    views = [flat.narrow(0, start, size) for start, size in zip(starts, sizes, strict=False)]
    for master, view in zip(zero.fp32_partitioned_groups_flat, views, strict=True):
        info = swapper.swap_params_info.get(master.ds_id)
        if info is not None:
            info.unswapped_gradients = {0: view}
            info.release_unswapped_gradients = view.zero_  # once it is stepped
    swapper.swap_out_gradients = _skip_swap_out


def _skip_swap_out(**_: Any) -> None:
    """Replaces the swapper's method, which is called when gradients of a sub-group are complete."""
