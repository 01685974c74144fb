# SPDX-License-Identifier: Apache-2.0
"""One step of SGD, Adam and AdamW by their formulas in fp64, with the largest error that rounding may make.

The error is derived from the formulas: u is the unit roundoff of the stored numbers, and the kernels compute in fp32
with hyperparameters in fp32. `1 - beta**step` in fp32 has a relative error of up to `step * u * beta**step / (1 -
beta**step)`, as DeepSpeed's CPU kernel multiplies the powers up.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from harness.engine_witness.number_formats import U32

SAFETY = 4.0
"""Factor on the derived bound: kernels may fuse and reorder, and approximate divisions and roots to two units."""

_FORMULAS = {
    "torch.optim.sgd.SGD": "sgd",
    "torch.optim.adam.Adam": "adam",
    "torch.optim.adamw.AdamW": "adamw",
    "deepspeed.ops.adam.fused_adam.FusedAdam": "deepspeed-adam",
    "deepspeed.ops.adam.cpu_adam.DeepSpeedCPUAdam": "deepspeed-adam",
}


@dataclass(frozen=True)
class StepInputs:
    """Sampled elements of one tensor before a step, in fp64 on the CPU."""

    formula: str
    """"sgd" or "adam"."""
    weights: torch.Tensor
    gradient: torch.Tensor
    first_moment: torch.Tensor | None
    """Adam's, or the momentum buffer of SGD; None before the first step."""
    second_moment: torch.Tensor | None
    step: int
    """The number of this step, from 1."""
    learning_rate: float
    weight_decay: float | torch.Tensor = 0.0
    is_decoupled: bool = False
    """AdamW's decay, which does not go through the moments."""
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    corrects_bias: bool = True
    momentum: float = 0.0
    dampening: float = 0.0
    nesterov: bool = False
    maximize: bool = False
    weight_roundoff: float = U32
    moment_roundoff: float = U32

    def with_roundoff(self, weight: float, moment: float) -> StepInputs:
        """The same with the number formats in which weights and moments are stored."""
        return replace(self, weight_roundoff=max(weight, U32), moment_roundoff=max(moment, U32))


@dataclass(frozen=True)
class StepOutputs:
    """The same elements after the step, and bounds of their rounding errors."""

    weights: torch.Tensor
    weight_error: torch.Tensor
    first_moment: torch.Tensor | None
    first_error: torch.Tensor | None
    second_moment: torch.Tensor | None
    second_error: torch.Tensor | None


def formula_of(optimizer: Any) -> str | None:
    """ "sgd", "adam", "adamw" or "deepspeed-adam"; None for an optimizer whose formula is not known here."""
    kind = type(optimizer)
    return _FORMULAS.get(f"{kind.__module__}.{kind.__qualname__}")


def inputs_of(
    optimizer: Any, group: Mapping[str, Any], step: int, values: Mapping[str, torch.Tensor]
) -> StepInputs | None:
    """The inputs of the next step. `values`: sampled `weights`, `gradient` and states; None for an unknown variant."""
    formula = formula_of(optimizer)
    if formula is None or group.get("amsgrad") or group.get("differentiable"):
        return None
    inputs = StepInputs(
        "sgd" if formula == "sgd" else "adam",
        values["weights"],
        values["gradient"],
        values.get("momentum_buffer" if formula == "sgd" else "exp_avg"),
        values.get("exp_avg_sq"),
        step,
        float(group["lr"]),
        float(group.get("weight_decay", 0.0)),
        maximize=bool(group.get("maximize", False)),
    )
    if formula == "sgd":
        return replace(
            inputs,
            momentum=float(group.get("momentum", 0.0)),
            dampening=float(group.get("dampening", 0.0)),
            nesterov=bool(group.get("nesterov", False)),
        )
    is_decoupled = formula == "adamw" or bool(group.get("decoupled_weight_decay", False))
    if formula == "deepspeed-adam":
        is_decoupled = bool(getattr(optimizer, "adam_w_mode", True))
    beta1, beta2 = (float(beta) for beta in group["betas"])
    return replace(
        inputs,
        is_decoupled=is_decoupled,
        beta1=beta1,
        beta2=beta2,
        eps=float(group["eps"]),
        corrects_bias=bool(group.get("bias_correction", True)),
    )


def apply_formula(inputs: StepInputs) -> StepOutputs:
    """The step."""
    return _step_sgd(inputs) if inputs.formula == "sgd" else _step_adam(inputs)


def _step_sgd(x: StepInputs) -> StepOutputs:
    gradient = -x.gradient if x.maximize else x.gradient
    decay = x.weight_decay * x.weights
    gradient, size = gradient + decay, gradient.abs() + decay.abs()
    moment, moment_error = None, None
    if x.momentum:
        old = x.first_moment
        if old is None:
            moment, moment_size = gradient, size
        else:
            moment = x.momentum * old + (1 - x.dampening) * gradient
            moment_size = (x.momentum * old).abs() + abs(1 - x.dampening) * size
        moment_error = SAFETY * (4 * U32 * moment_size + x.moment_roundoff * moment.abs())
        if x.nesterov:
            gradient, size = gradient + x.momentum * moment, size + x.momentum * moment_size
        else:
            gradient, size = moment, moment_size
    weights = x.weights - x.learning_rate * gradient
    error = SAFETY * 6 * U32 * abs(x.learning_rate) * size + _stored_error(x, weights)
    return StepOutputs(weights, error, moment, moment_error, None, None)


def _step_adam(x: StepInputs) -> StepOutputs:
    zero = torch.zeros_like(x.weights)
    first, second = (zero if m is None else m for m in (x.first_moment, x.second_moment))
    gradient = -x.gradient if x.maximize else x.gradient
    size = gradient.abs()
    if not x.is_decoupled:
        decay = x.weight_decay * x.weights
        gradient, size = gradient + decay, size + decay.abs()
    new_first = x.beta1 * first + (1 - x.beta1) * gradient
    new_second = x.beta2 * second + (1 - x.beta2) * gradient.square()
    # 1 - beta is computed in fp32 from beta in fp32.
    loss1, loss2 = U32 * x.beta1 / (1 - x.beta1), U32 * x.beta2 / (1 - x.beta2)
    first_error = (4 * U32 + loss1) * ((x.beta1 * first).abs() + (1 - x.beta1) * size)
    first_error += x.moment_roundoff * new_first.abs()
    second_error = (4 * U32 + loss2) * ((x.beta2 * second).abs() + (1 - x.beta2) * size.square())
    second_error += x.moment_roundoff * new_second.abs() + 1e-37  # numbers below 2**-126 may be flushed to zero
    correction1 = correction2 = 1.0
    relative = 16 * U32
    if x.corrects_bias:
        power1, power2 = x.beta1**x.step, x.beta2**x.step
        correction1, correction2 = 1 - power1, 1 - power2
        relative += (x.step + 2) * U32 * (power1 / correction1 + power2 / correction2)
    root = new_second.sqrt() / correction2**0.5
    denominator = root + x.eps
    low = (new_second - second_error).clamp_min(0).sqrt() / correction2**0.5 + x.eps
    high = (new_second + second_error).sqrt() / correction2**0.5 + x.eps
    step_size = x.learning_rate / correction1
    update = step_size * new_first / denominator
    kept = 1 - x.learning_rate * x.weight_decay if x.is_decoupled else 1.0
    weights = kept * x.weights - update
    error = update.abs() * (relative + (denominator / low - 1) + (1 - denominator / high))
    error += abs(step_size) * first_error / low
    error = SAFETY * error + _stored_error(x, weights)
    return StepOutputs(weights, error, new_first, SAFETY * first_error, new_second, SAFETY * second_error)


def _stored_error(x: StepInputs, weights: torch.Tensor) -> torch.Tensor:
    """The decay's factor, its product and the difference are rounded."""
    return 3 * x.weight_roundoff * torch.maximum(x.weights.abs(), weights.abs())
