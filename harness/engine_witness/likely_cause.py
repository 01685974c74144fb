# SPDX-License-Identifier: Apache-2.0
"""Likely causes of a difference: the hypothesis that gives the numbers that were found."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import torch

from harness.engine_witness.gradient_comparison import NORM_TOLERANCE, GradientNumbers, GradientVerdict, fit_factor
from harness.engine_witness.optimizer_formula import StepInputs, StepOutputs, apply_formula
from harness.engine_witness.stepped_values import StepRecorder


@dataclass(frozen=True)
class Hypotheses:
    """Gradients that a known fault would have stepped with, over all ranks, as `GradientNumbers.expected` is."""

    by_cause: Mapping[str, torch.Tensor]
    """Id of a cause -> gradient."""
    accumulation: int
    ranks: float
    loss_scale: float
    clip_grad: float | None
    """The norm at which the engine's optimizer clips, which a script may have set; None where it has none."""


def cause_of_gradient(
    part: torch.Tensor, numbers: GradientNumbers, verdict: GradientVerdict, hypotheses: Hypotheses
) -> tuple[str, str]:
    """(id of the cause, detail) of the wrong elements `part`: int64 positions among the sampled ones."""
    part = part[numbers.is_owned[part]]
    found, expected = numbers.stepped[part], numbers.expected[part]
    tolerance = float(numbers.tolerance[part].norm())
    if not len(part) or float(found.norm()) <= 1e-6 * float(expected.norm()):
        return "zero", ""
    factor = fit_factor(found, expected)
    if is_multiple(found, expected, tolerance):
        return _cause_of_factor(factor, numbers, verdict, hypotheses)
    for cause, gradient in hypotheses.by_cause.items():
        if float((gradient[part] - expected).norm()) <= tolerance:
            continue  # no other than what was expected
        if numbers.clip > 0 or cause == "stale":
            fits = is_multiple(found, gradient[part], tolerance)
        else:
            fits = float((found - gradient[part]).norm()) <= 2 * tolerance + 1e-3 * float(found.norm())
        if fits:
            return cause.strip(), ""
    return "unknown", ""


def fits_rank(
    part: torch.Tensor, numbers: GradientNumbers, own: torch.Tensor, steps: StepRecorder, divisor: float
) -> tuple[bool, bool]:
    """(is the contribution `own` of this rank missing everywhere, are its elements stepped with `own` alone?)"""
    mean = own / divisor
    owned = part[numbers.is_owned[part]]
    without = numbers.expected[owned] - mean[owned]
    tolerance = float(numbers.tolerance[owned].norm())
    has_part = float(mean[owned].norm()) > 4 * tolerance
    is_missing = has_part and divisor > 1 and is_multiple(numbers.stepped[owned], without, tolerance)
    stepped, here = steps.own_gradients(len(own))
    mine = owned[here[owned]]
    tolerance = float(numbers.tolerance[mine].norm())
    alone = bool(len(mine)) and divisor > 1 and is_multiple(stepped[mine], mean[mine], tolerance)
    return is_missing, alone or not len(mine)


def is_multiple(found: torch.Tensor, expected: torch.Tensor, tolerance: float) -> bool:
    """Has `found` the direction of `expected`?"""
    factor = fit_factor(found, expected)
    if not math.isfinite(factor) or factor == 0:
        return False
    gap = float((found - factor * expected).norm())
    return gap <= abs(factor) * 2 * tolerance + 1e-3 * float(found.norm())


def _cause_of_factor(
    factor: float, numbers: GradientNumbers, verdict: GradientVerdict, hypotheses: Hypotheses
) -> tuple[str, str]:
    """`factor`: of the stepped gradient over that before clipping."""
    near = 0.01 + numbers.relative_tolerance
    if verdict.differs_in_norm:
        norm = numbers.norm / verdict.factor
        if hypotheses.clip_grad is not None and hypotheses.clip_grad != numbers.clip:
            return "other-clip-grad", f"{hypotheses.clip_grad:g}, not {numbers.clip:g}"
        if abs(verdict.factor - 1) < NORM_TOLERANCE + numbers.relative_tolerance and norm > numbers.clip:
            return "not-clipped", f"its norm is {norm:.4g}, `gradient_clipping` is {numbers.clip:g}"
    factor /= verdict.expected_factor
    cause, detail = name_factor(factor, hypotheses.accumulation, hypotheses.ranks, hypotheses.loss_scale, near)
    return ("clip-norm" if cause == "scaled" and verdict.differs_in_norm else cause), detail


def name_factor(factor: float, accumulation: int, ranks: float, loss_scale: float, near: float) -> tuple[str, str]:
    """(id of the cause, detail) of a gradient that is `factor` times as long as it should be, about: within `near`."""
    candidates = {
        "divided-again-by-accumulation": 1 / accumulation,
        "divided-again-by-accumulation ": 1 / accumulation**2,
        "not-divided-by-accumulation": float(accumulation),
        "divided-again-by-ranks": 1 / ranks,
        "not-divided-by-ranks": ranks,
        "loss-scale": loss_scale,
        "loss-scale ": 1 / loss_scale,
    }
    fitting = [cause.strip() for cause, value in candidates.items() if value != 1 and abs(factor / value - 1) < near]
    others = f"; or {fitting[1]}" if len(fitting) > 1 else ""
    return fitting[0] if fitting else "scaled", f"factor {factor:.4g}{others}"


def cause_of_update(
    inputs: StepInputs, found: torch.Tensor, wrong: torch.Tensor, num_steps: int, decays: tuple[float, ...]
) -> tuple[str, str]:
    """The same of an update: `found` are the weights after the step, `wrong` the elements that differ."""
    if num_steps > 1:
        return "stepped-again", f"{num_steps} times"
    weights, actual = inputs.weights[wrong], found[wrong]
    if torch.equal(weights, actual):
        return "not-stepped", ""
    first = apply_formula(inputs)
    for cause, detail, other in _other_steps(inputs, first, decays):
        outputs = apply_formula(other)
        gap = (outputs.weights - found).abs()[wrong]
        if bool((gap <= 2 * outputs.weight_error[wrong]).all()):
            return cause, detail
    expected_move = (first.weights - inputs.weights)[wrong]
    factor = fit_factor(actual - weights, expected_move)
    if is_multiple(actual - weights, expected_move, float(first.weight_error[wrong].norm())):
        return "learning-rate", f"the step is {factor:.4g} times as long"
    return "unknown", ""


def _other_steps(
    inputs: StepInputs, first: StepOutputs, decays: tuple[float, ...]
) -> Iterator[tuple[str, str, StepInputs]]:
    """(id of a cause, detail, the inputs with which the formula gives what this fault would)."""
    second = replace(
        inputs,
        weights=first.weights,
        first_moment=first.first_moment,
        second_moment=first.second_moment,
        step=inputs.step + 1,
    )
    yield "stepped-again", "", second
    yield "stepped-again", "", replace(second, step=inputs.step)
    for decay in (0.0, *decays):
        yield "weight-decay", f"as with a decay of {decay:g}", replace(inputs, weight_decay=decay)
    other_place = replace(inputs, is_decoupled=not inputs.is_decoupled)
    yield "weight-decay", "in the gradient instead of the weights, or the other way round", other_place
    if inputs.formula == "adam":
        for step in (inputs.step - 1, inputs.step + 1):
            if step > 0:
                yield "bias-correction", f"of step {step} instead of {inputs.step}", replace(inputs, step=step)
        yield "bias-correction", "missing", replace(inputs, corrects_bias=False)
