"""Skips steps whose gradient has a NaN or an infinity, at ZeRO stage 0 in fp32 and under autocast.

Wherever DeepSpeed keeps masters or shards it skips them itself; a bare optimizer would step, and the NaN would be in
the weights.
"""

from __future__ import annotations

import functools
from typing import Any

import torch

from harness.runtime.distributed import Distributed


def skip_nonfinite_steps(engine: Any, distributed: Distributed, *, same_gradients: bool) -> None:
    """Make a bare optimizer skip steps whose gradient is not finite, as DeepSpeed's own wrappers do.

    The engine reads `optimizer.overflow` after a step: it counts the skip and keeps the learning rate. With
    `same_gradients` all ranks hold the same ones and need not agree. Costs one flag that is read back a step.
    """
    optimizer = engine.optimizer
    if hasattr(optimizer, "overflow") or getattr(engine, "torch_autocast_z0_gradscaler", None) is not None:
        return
    original = optimizer.step

    @functools.wraps(original)  # torch's scheduler looks for a mark that it left on it
    def step(*args: Any, **kwargs: Any) -> Any:
        gradients = [p.grad for g in optimizer.param_groups for p in g["params"] if p.grad is not None]
        nonfinite = bool(gradients) and not bool(torch.isfinite(torch.nn.utils.get_total_norm(gradients)))
        optimizer.overflow = nonfinite if same_gradients else distributed.any_rank(nonfinite)
        return None if optimizer.overflow else original(*args, **kwargs)

    optimizer.overflow = False
    optimizer.step = step
