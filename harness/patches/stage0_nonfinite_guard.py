# SPDX-License-Identifier: Apache-2.0
"""Skips steps whose gradient has a NaN or an infinity, at ZeRO stage 0 in fp32 and under autocast.

Upstream: Wherever DeepSpeed keeps fp32 masters or shards, it skips such a step. A bare optimizer takes it, and the NaN
is in the weights.

Patch: The optimizer's `step` computes the norm of the gradients first and does nothing where it is not finite; it sets
`overflow`, by which the engine counts the skip and keeps the learning rate. It costs one flag that is read back a step.
"""

from __future__ import annotations

import functools
from typing import Any

from harness.patches.patch_registry import Patch, RankAgreement, Target


def skip_nonfinite_steps(engine: Any, any_rank: RankAgreement) -> None:
    """Make a bare optimizer skip steps whose gradient is not finite, as DeepSpeed's own wrappers do.

    The engine reads `optimizer.overflow` after a step: it counts the skip and keeps the learning rate. Costs one flag
    that is read back a step.
    """
    import torch

    optimizer = engine.optimizer
    if hasattr(optimizer, "overflow") or getattr(engine, "torch_autocast_z0_gradscaler", None) is not None:
        return
    original = optimizer.step

    @functools.wraps(original)  # torch's scheduler looks for a mark that it left on it
    def step(*args: Any, **kwargs: Any) -> Any:
        gradients = [p.grad for g in optimizer.param_groups for p in g["params"] if p.grad is not None]
        nonfinite = bool(gradients) and not bool(torch.isfinite(torch.nn.utils.get_total_norm(gradients)))
        optimizer.overflow = any_rank(nonfinite)
        return None if optimizer.overflow else original(*args, **kwargs)

    optimizer.overflow = False
    optimizer.step = step


PATCH = Patch(
    name="stage0-nonfinite-guard",
    kind="correctness",
    targets=(Target("deepspeed.runtime.engine:DeepSpeedEngine._take_model_step", "49aca6a4d1a8ba12"),),
    remove_when="`_take_model_step` skips nonfinite steps of a bare optimizer",
    when="stage 0",
    is_needed=lambda run: run.stage == 0,
    on_engine=skip_nonfinite_steps,
)
