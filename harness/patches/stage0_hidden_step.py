# SPDX-License-Identifier: Apache-2.0
"""Undoes the hidden step of the 16-bit optimizer wrappers of ZeRO stage 0.

Upstream: While `FP16_Optimizer` and `FP16_UnfusedOptimizer` are built, they step the optimizer once, with gradients of
zero, to allocate its states (`initialize_optimizer_states` in `runtime/fp16/fused_optimizer.py` and
`unfused_optimizer.py`). Adam's count is then one ahead, and weight decay was applied once. DeepSpeed's pull request
5104 is about the same step in the optimizers of other stages.

Patch: Once the engine is built, its states are set to zero and the fp32 weights to those of the model.
"""

from __future__ import annotations

from typing import Any

from harness.patches.patch_registry import Patch, RankAgreement, Target


def undo_hidden_step(engine: Any, _: RankAgreement) -> None:
    """Set the states to zero and the fp32 weights to those of the model. Engines without such a step are left alone."""
    import torch
    from deepspeed.runtime.fp16.fused_optimizer import FP16_Optimizer
    from deepspeed.runtime.fp16.unfused_optimizer import FP16_UnfusedOptimizer

    wrapper = engine.optimizer
    if isinstance(wrapper, FP16_Optimizer):
        masters, weights = wrapper.fp32_groups_flat, wrapper.fp16_groups_flat
    elif isinstance(wrapper, FP16_UnfusedOptimizer):
        masters = [m for group in wrapper.fp32_groups for m in group]
        weights = [w for group in wrapper.fp16_groups for w in group]
    else:
        return
    with torch.no_grad():
        for master, weight in zip(masters, weights, strict=True):
            master.copy_(weight)
    for state in wrapper.optimizer.state.values():
        for name, value in state.items():
            if torch.is_tensor(value):
                value.zero_()
            elif name == "step":
                state[name] = 0


PATCH = Patch(
    name="stage0-hidden-step",
    kind="correctness",
    targets=(
        Target("deepspeed.runtime.fp16.fused_optimizer:FP16_Optimizer.initialize_optimizer_states", "e73ecc96fc52de85"),
        Target(
            "deepspeed.runtime.fp16.unfused_optimizer:FP16_UnfusedOptimizer.initialize_optimizer_states",
            "b71780398ecb3388",
        ),
    ),
    remove_when="`initialize_optimizer_states` allocates the states of stage 0 without a step",
    when="stage 0 in bf16 or fp16",
    is_needed=lambda run: run.stage == 0 and run.has_16bit_weights,
    on_engine=undo_hidden_step,
)
