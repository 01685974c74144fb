# SPDX-License-Identifier: Apache-2.0
"""Replays CPU Adam's steps after a resume, so that its powers of beta are those of a run that was not interrupted.

Upstream: The CPU kernels (`csrc/includes/cpu_adam.h`, `IncrementStep`) keep beta^t as a running fp32 product while
steps follow each other, and take `pow(beta, t)` after a gap. A resume is a gap: at some t the last bit differs, for
0.999 at t = 3 and 6, and all later powers with it.

Patch: After a checkpoint is loaded, the first t steps are replayed on one unused element. Optimizers on an accelerator
compute the power in every step and need nothing.
"""

from __future__ import annotations

from typing import Any

from harness.patches.patch_registry import Patch, Target


def replay_cpu_adam(engine: Any, max_steps: int) -> int:
    """Replay on the CPU Adam of this rank's engine, if it has one; returns the number of replayed steps. `max_steps`:
    those of the checkpoint. Raises ValueError where the optimizer has counted more.
    """
    from deepspeed.ops.adam import DeepSpeedCPUAdam, FusedAdam

    adam = engine.basic_optimizer
    if not isinstance(adam, DeepSpeedCPUAdam | FusedAdam):
        return 0
    states = list(adam.state.values())
    steps = max((int(s["step"]) for s in states if "step" in s), default=0)
    if isinstance(adam, FusedAdam) and (not states or states[0]["exp_avg"].device.type != "cpu"):
        return 0
    if steps > max_steps:
        raise ValueError(f"the optimizer has counted {steps} steps, the run {max_steps}")
    group = adam.param_groups[0]
    for step in range(1, steps + 1):
        _replay_step(adam, group, step)
    return steps


def _replay_step(adam: Any, group: dict[str, Any], step: int) -> None:
    import torch
    from deepspeed.ops.adam import DeepSpeedCPUAdam

    beta1, beta2 = group["betas"]
    weight, gradient, first, second = (torch.zeros(1) for _ in range(4))
    if isinstance(adam, DeepSpeedCPUAdam):
        numbers = (adam.opt_id, step, 0.0, beta1, beta2, group["eps"], 0.0, group["bias_correction"])
        adam.ds_opt_adam.adam_update(*numbers, weight, gradient, first, second)
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


PATCH = Patch(
    name="cpu-adam-resume",
    kind="correctness",
    targets=(
        Target("deepspeed.ops.adam.cpu_adam:DeepSpeedCPUAdam.step", "60c1fe8cf212943f"),
        Target("deepspeed.ops.adam.fused_adam:FusedAdam.step", "8ae7940eb2a75e91"),
    ),
    remove_when="`IncrementStep` computes beta^t in the same way with and without a gap between steps",
    when="runs that resume from a checkpoint, with the optimizer on the CPU",
    is_needed=lambda run: run.is_resumed and (run.on_cpu_accelerator or run.optimizer_device != "none"),
    private_names=("_dummy_overflow_buf",),
    upstream="https://github.com/deepspeedai/DeepSpeed/pull/564",
)
