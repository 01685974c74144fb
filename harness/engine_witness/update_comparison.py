# SPDX-License-Identifier: Apache-2.0
"""Comparison of updates with the optimizer's formula, and of the model's weights with those that were stepped."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import torch

from harness.engine_witness.engine_layout import EngineLayout
from harness.engine_witness.gradient_comparison import GradientNumbers
from harness.engine_witness.gradient_recorder import Contributions
from harness.engine_witness.likely_cause import cause_of_update
from harness.engine_witness.optimizer_formula import StepInputs, StepOutputs, apply_formula
from harness.engine_witness.sampled_rows import SampledParameter, segments_of
from harness.engine_witness.stepped_values import SteppedTensor, StepRecorder
from harness.engine_witness.witness_result import DifferenceKind


@dataclass(frozen=True)
class LocalDifference:
    """A difference that one rank sees."""

    kind: DifferenceKind
    parameter: str
    expected: float
    found: float
    relative: float
    cause: str = "unknown"
    detail: str = ""


def compare_updates(
    samples: Sequence[SampledParameter],
    steps: StepRecorder,
    weight_decay: Callable[[str], float] | None,
    numbers: GradientNumbers,
) -> list[LocalDifference]:
    """The tensors that this rank steps."""
    if weight_decay is not None:
        decays = torch.tensor([weight_decay(sample.name) for sample in samples], dtype=torch.float64)
        meant = decays[segments_of(samples)]
        for stepped in steps.tensors.values():
            if stepped.inputs is not None:
                stepped.inputs = replace(stepped.inputs, weight_decay=meant[stepped.elements])
    differences = _find_unstepped(samples, steps, numbers)
    compared = [t for t in steps.tensors.values() if t.num_steps and t.inputs is not None and t.after]
    for tensors in _alike(compared):
        outputs = apply_formula(_join(tensors))
        if _agrees(tensors, outputs):
            continue
        known = {
            float(t.inputs.weight_decay) for t in compared if t.inputs and isinstance(t.inputs.weight_decay, float)
        }
        for stepped in tensors:
            if stepped.inputs is not None:
                differences += _compare_tensor(samples, stepped, stepped.inputs, tuple(known))
    return differences


def _find_unstepped(
    samples: Sequence[SampledParameter], steps: StepRecorder, numbers: GradientNumbers
) -> list[LocalDifference]:
    """Tensors that have a gradient, and that the optimizer left out while it stepped others."""
    differences = []
    for stepped in steps.tensors.values():
        if stepped.num_steps or not steps.num_steps:
            continue
        expected = numbers.expected[stepped.elements]
        has_gradient = numbers.is_owned[stepped.elements] | (expected.abs() > numbers.tolerance[stepped.elements])
        if bool(has_gradient.any()):
            number = int(stepped.elements[has_gradient][0])
            name = next(sample.name for sample in samples if sample.start <= number < sample.end)
            values = float(numbers.expected[number]), 0.0, 1.0
            differences.append(LocalDifference("update", name, *values, "not-stepped"))
    return differences


def _alike(tensors: Sequence[SteppedTensor]) -> Iterator[list[SteppedTensor]]:
    """Tensors that are stepped with the same settings, which one call of the formula computes."""
    groups: dict[tuple[object, ...], list[SteppedTensor]] = {}
    for stepped in tensors:
        inputs = stepped.inputs
        values = [getattr(inputs, field.name) for field in fields(StepInputs)]
        states = tuple(value is None or torch.is_tensor(value) or value for value in values)
        groups.setdefault((*states, tuple(stepped.after), stepped.num_steps > 1), []).append(stepped)
    yield from groups.values()


def _join(tensors: Sequence[SteppedTensor]) -> StepInputs:
    inputs = [stepped.inputs for stepped in tensors if stepped.inputs is not None]
    joined: dict[str, Any] = {
        field.name: torch.cat([getattr(one, field.name) for one in inputs])
        for field in fields(StepInputs)
        if torch.is_tensor(getattr(inputs[0], field.name))
    }
    return replace(inputs[0], **joined)


def _agrees(tensors: Sequence[SteppedTensor], outputs: StepOutputs) -> bool:
    """Has everything the values of the formula?"""
    first = tensors[0].inputs
    if first is None or any(stepped.num_steps > 1 for stepped in tensors):
        return False
    for state, expected, error in _states_of(first, outputs):
        if expected is not None and error is not None and all(state in stepped.after for stepped in tensors):
            found = torch.cat([stepped.after[state] for stepped in tensors])
            if not bool(((found - expected).abs() <= error).all()):
                return False
    return True


def _compare_tensor(
    samples: Sequence[SampledParameter], stepped: SteppedTensor, inputs: StepInputs, decays: tuple[float, ...]
) -> Iterator[LocalDifference]:
    outputs = apply_formula(inputs)
    for name, part in _parts_of(samples, stepped.elements):
        for state, expected, error in _states_of(inputs, outputs):
            found = stepped.after.get(state)
            if found is None or expected is None or error is None:
                continue
            gap = (found - expected)[part].abs()
            wrong = ~(gap <= error[part])
            if not bool(wrong.any()) or not bool(torch.isfinite(expected[part]).all()):
                continue
            worst = int(gap.nan_to_num(nan=math.inf).argmax())
            move = float((expected - stepped.before["weights"])[part].norm()) if state == "weights" else 0.0
            scale = move or float(expected[part].norm())
            elements = torch.zeros_like(stepped.elements, dtype=torch.bool)
            elements[part] = wrong
            cause, detail = "unknown", f"in its state {state}"
            if state == "weights" or stepped.num_steps > 1:
                cause, detail = cause_of_update(inputs, stepped.after["weights"], elements, stepped.num_steps, decays)
            yield LocalDifference(
                "update",
                name,
                float(expected[part][worst]),
                float(found[part][worst]),
                float(gap.norm()) / scale if scale else math.inf,
                cause,
                detail,
            )
            break


def _states_of(
    inputs: StepInputs, outputs: StepOutputs
) -> Iterator[tuple[str, torch.Tensor | None, torch.Tensor | None]]:
    first = "momentum_buffer" if inputs.formula == "sgd" else "exp_avg"
    yield "weights", outputs.weights, outputs.weight_error
    yield first, outputs.first_moment, outputs.first_error
    yield "exp_avg_sq", outputs.second_moment, outputs.second_error


def compare_replicas(
    samples: Sequence[SampledParameter], steps: StepRecorder, numbers: GradientNumbers, factor: float
) -> list[LocalDifference]:
    """The gradients of this rank, where others step the same elements."""
    own, is_here = steps.own_gradients(len(numbers.expected))
    expected = factor * numbers.expected
    gap = (own - expected).abs()
    wrong = is_here & ~(gap <= max(factor, 1.0) * numbers.tolerance)
    differences = []
    for sample in samples:
        part = slice(sample.start, sample.end)
        if bool(wrong[part].any()):
            worst = int(torch.where(wrong[part], gap[part], torch.zeros_like(gap[part])).argmax())
            norm = float(expected[part].norm())
            relative = float(gap[part].norm()) / norm if norm else math.inf
            values = float(expected[part][worst]), float(own[part][worst])
            differences.append(
                LocalDifference(
                    "gradient", sample.name, *values, relative, "unknown", "ranks step with other gradients"
                )
            )
    return differences


def compare_weights(
    samples: Sequence[SampledParameter],
    own: Contributions,
    weights: torch.Tensor,
    is_owned: torch.Tensor,
    layout: EngineLayout,
) -> list[LocalDifference]:
    """The weights with which this rank computed, against the stepped ones before this step, rounded to their format."""
    precisions = [_precision_of(sample, layout) for sample in samples]
    eps, smallest = torch.tensor(precisions, dtype=torch.float64)[segments_of(samples)].T
    gap = (own.weights - weights).abs()
    wrong = own.has_weights & is_owned & ~(gap <= eps * weights.abs() + smallest)
    if not bool(wrong.any()):
        return []
    differences = []
    for sample in samples:
        part = slice(sample.start, sample.end)
        if bool(wrong[part].any()):
            worst = int(torch.where(wrong[part], gap[part], torch.zeros_like(gap[part])).argmax())
            norm = float(weights[part].norm())
            relative = float(gap[part][is_owned[part]].norm()) / norm if norm else math.inf
            values = float(weights[part][worst]), float(own.weights[part][worst])
            differences.append(LocalDifference("weights", sample.name, *values, relative))
    return differences


def _precision_of(sample: SampledParameter, layout: EngineLayout) -> tuple[float, float]:
    """(relative, absolute) rounding of the weights; any where the stepped tensor is the weight itself."""
    if layout.places[id(sample.parameter)].flat is sample.parameter:
        return 0.0, math.inf
    formats = [torch.finfo(dtype) for dtype in (sample.parameter.dtype, layout.autocast) if dtype is not None]
    precision = max(formats, key=lambda one: one.eps)
    return precision.eps, precision.smallest_normal * precision.eps


def _parts_of(samples: Sequence[SampledParameter], elements: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
    """(name, positions in `elements`) of each parameter that has some there."""
    for sample in samples:
        part = ((elements >= sample.start) & (elements < sample.end)).nonzero().reshape(-1)
        if len(part):
            yield sample.name, part
