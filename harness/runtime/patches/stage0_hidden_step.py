"""Undoes the hidden step of DeepSpeed's 16-bit wrappers of ZeRO stage 0: while they are built, they step the optimizer
once, with gradients of zero, to allocate its states. Adam's count would be one ahead, weight decay applied once more.

Source: `initialize_optimizer_states` in `runtime/fp16/fused_optimizer.py` and `unfused_optimizer.py`.
"""

from __future__ import annotations

from typing import Any

import torch
from deepspeed.runtime.fp16.fused_optimizer import FP16_Optimizer
from deepspeed.runtime.fp16.unfused_optimizer import FP16_UnfusedOptimizer


def undo_hidden_step(engine: Any) -> None:
    """Set the states to zero and the fp32 weights to those of the model. Engines without such a step are left alone."""
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
