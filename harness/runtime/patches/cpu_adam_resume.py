"""Brings DeepSpeed's CPU Adam to its state at the checkpoint, so that a resume is exact.

DeepSpeed's CPU kernels (`csrc/includes/cpu_adam.h`, `IncrementStep`) keep beta^t as a running fp32 product while steps
follow each other, but take `pow(beta, t)` after a gap, and a resume is a gap: the last bit differs from t = 3 on. So
the first t steps are replayed on one unused element. Optimizers on an accelerator compute the power in every step and
need nothing.
"""

from __future__ import annotations

from typing import Any

import torch
from deepspeed.ops.adam import DeepSpeedCPUAdam, FusedAdam


def replay_cpu_adam(engine: Any) -> int:
    """Replay on the CPU Adam of this rank's engine, if it has one; returns the number of replayed steps."""
    adam = engine.basic_optimizer
    if not isinstance(adam, DeepSpeedCPUAdam | FusedAdam):
        return 0
    states = list(adam.state.values())
    steps = max((int(s["step"]) for s in states if "step" in s), default=0)
    if isinstance(adam, FusedAdam) and (not states or states[0]["exp_avg"].device.type != "cpu"):
        return 0
    group = adam.param_groups[0]
    for step in range(1, steps + 1):
        _replay_step(adam, group, step)
    return steps


def _replay_step(adam: Any, group: dict[str, Any], step: int) -> None:
    beta1, beta2 = group["betas"]
    weight, gradient, first, second = (torch.zeros(1) for _ in range(4))
    if isinstance(adam, DeepSpeedCPUAdam):
        adam.ds_opt_adam.adam_update(
            adam.opt_id,
            step,
            0.0,
            beta1,
            beta2,
            group["eps"],
            0.0,
            group["bias_correction"],
            weight,
            gradient,
            first,
            second,
        )
    else:
        adam.multi_tensor_adam(
            2048 * 32,  # the chunk size that FusedAdam itself passes
            adam._dummy_overflow_buf,
            [[gradient], [weight], [first], [second]],
            0.0,
            beta1,
            beta2,
            group["eps"],
            step,
            adam.adam_w_mode,
            int(group["bias_correction"]),
            0.0,
        )
