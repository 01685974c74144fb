# SPDX-License-Identifier: Apache-2.0
"""Comparison of one sampled step over all ranks: the collectives, and what differs."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from harness.engine_witness.backward_scale import BackwardPass, loss_scale_of
from harness.engine_witness.engine_layout import EngineLayout
from harness.engine_witness.gradient_comparison import (
    NORM_TOLERANCE,
    GradientNumbers,
    GradientVerdict,
    compare_gradients,
)
from harness.engine_witness.gradient_recorder import Contributions, GradientRecorder
from harness.engine_witness.likely_cause import Hypotheses, cause_of_gradient, fits_rank, name_factor
from harness.engine_witness.number_formats import U32
from harness.engine_witness.rank_agreement import RankAgreement
from harness.engine_witness.stepped_values import StepRecorder
from harness.engine_witness.update_comparison import LocalDifference, compare_replicas, compare_updates, compare_weights
from harness.engine_witness.witness_result import Difference, DifferenceKind, WitnessResult


@dataclass
class StepOutcome:
    """The same on every rank."""

    differences: list[Difference] = field(default_factory=list)
    parameters: int = 0
    elements: int = 0
    updates: int = 0
    not_compared: list[str] = field(default_factory=list)
    fault: str = ""

    def to_result(self, step: int, seconds: float) -> WitnessResult:
        """The value that is handed on."""
        return WitnessResult(
            step,
            tuple(self.differences),
            self.parameters,
            self.elements,
            self.updates,
            tuple(self.not_compared),
            seconds,
        )


@dataclass(frozen=True)
class _Status:
    """Of the data-parallel group: the most of each number."""

    failed: float
    size: float
    negative_size: float
    num_passes: float
    num_calls: float
    num_steps: float
    gradient_roundoff: float
    master_roundoff: float
    scale_error: float


@dataclass
class _Comparison:
    """The differences that this rank sees. The verdict is the same on all ranks of the data-parallel group."""

    numbers: GradientNumbers | None = None
    verdict: GradientVerdict = field(default_factory=GradientVerdict)
    local: list[LocalDifference] = field(default_factory=list)


class StepComparison:
    """Compares the sampled steps of one engine. `divisor`: that of the sum over the ranks of `agreement`."""

    def __init__(
        self,
        engine: Any,
        agreement: RankAgreement,
        divisor: float,
        recorder: GradientRecorder,
        weight_decay: Callable[[str], float] | None,
    ) -> None:
        self._engine, self._agreement, self._divisor, self._recorder = engine, agreement, divisor, recorder
        self._weight_decay = weight_decay
        self._had_calls = False
        self._previous: dict[str, torch.Tensor] = {}

    def run(
        self, steps: StepRecorder, layout: EngineLayout, passes: Sequence[BackwardPass], step: int
    ) -> StepOutcome | None:
        """None when no rank stepped. Three collectives, and two more where something differs."""
        recorder, agreement = self._recorder, self._agreement
        size = recorder.size
        vector, own = torch.zeros(5 * size + 1, dtype=torch.float64), None
        scale_error = 0.0
        try:
            steps.finish()
            scale_error = max((p.roundoff() for p in passes), default=0.0)
            own = recorder.collect()
            vector = _pack(own, steps)
        except Exception as error:  # the other ranks wait in the next collective
            recorder.fail(error)
        status = _Status(
            *agreement.maximum(
                [
                    float(bool(recorder.fault)),
                    float(size),
                    -float(size),
                    float(recorder.num_passes),
                    float(recorder.num_calls),
                    float(steps.num_steps),
                    recorder.gradient_roundoff,
                    steps.master_roundoff,
                    scale_error,
                ]
            )
        )
        outcome = StepOutcome()
        comparison = _Comparison()
        is_comparable = not status.failed and status.size == -status.negative_size
        if not is_comparable or own is None:
            outcome.fault = recorder.fault or "another rank failed, or has other parameters"
        else:
            summed = agreement.sum(vector)
            try:
                comparison = self._compare(own, summed, steps, layout, passes, status, outcome)
            except Exception as error:  # as above
                recorder.fail(error)
                comparison = _Comparison()
            self._had_calls = self._had_calls or bool(status.num_calls)
        num_different = len(comparison.local) + len(comparison.verdict.flagged)
        most, failed = agreement.maximum([float(num_different), float(bool(recorder.fault))], everywhere=True)
        if failed:
            outcome.fault = recorder.fault or outcome.fault or "another rank failed"
        elif most and own is not None:
            outcome.differences = self._explain(own, comparison, steps, status, step)
        if comparison.numbers is not None:
            expected = comparison.numbers.expected
            self._previous = {s.name: expected[s.start : s.end] for s in recorder.samples}
        return outcome if outcome.fault or status.num_steps or outcome.differences else None

    def _numbers(self, summed: torch.Tensor, size: int, status: _Status, layout: EngineLayout) -> GradientNumbers:
        total, magnitude, stepped, _, owners = summed[: 5 * size].view(5, size)
        engine = self._engine
        roundoff = max(status.gradient_roundoff, status.master_roundoff, layout.roundoff, U32)
        clip = float(engine.gradient_clipping() or 0.0)
        replicas = max(1.0, float(owners.max()))
        return GradientNumbers(
            expected=total / self._divisor,
            magnitude=magnitude / self._divisor,
            stepped=stepped / owners.clamp_min(1),
            is_owned=owners > 0,
            clip=clip,
            norm=math.sqrt(float(summed[-1]) / replicas) if layout.checks_norm else math.nan,
            roundoff=roundoff,
            scale_error=status.scale_error,
            num_passes=int(status.num_passes),
            num_ranks=self._agreement.num_ranks,
            smallest=2.0**-25 / loss_scale_of(engine) if roundoff == 2.0**-11 else 0.0,
        )

    def _compare(
        self,
        own: Contributions,
        summed: torch.Tensor,
        steps: StepRecorder,
        layout: EngineLayout,
        passes: Sequence[BackwardPass],
        status: _Status,
        outcome: StepOutcome,
    ) -> _Comparison:
        """On this rank; no collective."""
        if not status.num_steps:
            return _Comparison(local=self._find_skipped_step(own, layout))
        if not status.num_calls and not self._had_calls:
            outcome.not_compared.append("autograd called no hook of a parameter")
            return _Comparison()
        samples, size = self._recorder.samples, self._recorder.size
        numbers = self._numbers(summed, size, status, layout)
        comparison = _Comparison(numbers)
        outcome.updates = sum(len(t.elements) for t in steps.tensors.values() if t.inputs is not None)
        if not bool(torch.isfinite(numbers.expected).all()):
            outcome.not_compared.append("a gradient is not finite")
        else:
            comparison.verdict = compare_gradients(samples, numbers)
            outcome.parameters, outcome.elements = len(samples), int(numbers.is_owned.sum())
            comparison.local += compare_updates(samples, steps, self._weight_decay, numbers)
            if not comparison.verdict.flagged and float(summed[4 * size : 5 * size].max()) > 1:
                comparison.local += compare_replicas(samples, steps, numbers, comparison.verdict.factor)
        if steps.unknown_formula:
            outcome.not_compared.append(f"the update of {steps.unknown_formula}")
        if layout.checks_weights:
            weights = summed[3 * size : 4 * size] / summed[4 * size : 5 * size].clamp_min(1)
            comparison.local += compare_weights(samples, own, weights, numbers.is_owned, layout)
        comparison.local += self._compare_factor(passes)
        return comparison

    def _find_skipped_step(self, own: Contributions, layout: EngineLayout) -> list[LocalDifference]:
        """No optimizer stepped, and the engine reports no overflow. (A scaler of torch never does.)"""
        is_silent = layout.autocast == torch.float16 or not hasattr(layout.outer, "overflow")
        size = own.total.abs()
        if is_silent or layout.outer.overflow or not len(size) or not bool(torch.isfinite(size).all()):
            return []
        worst = int(size.argmax())
        if not float(size[worst]):
            return []
        sample = next(s for s in self._recorder.samples if s.start <= worst < s.end)
        expected = float(own.total[worst]) / self._divisor
        return [LocalDifference("update", sample.name, expected, 0.0, 1.0, "not-stepped", "no overflow was reported")]

    def _compare_factor(self, passes: Sequence[BackwardPass]) -> list[LocalDifference]:
        """A wrong factor of the loss, which clipping hides in the gradient."""
        for backward in passes:
            wrong = backward.wrong_factor()
            if wrong is not None:
                expected, measured = wrong
                steps, scale = int(self._engine.gradient_accumulation_steps()), backward.loss_scale
                cause, detail = name_factor(measured / expected, steps, 1.0, scale, 0.01)
                gap = abs(measured / expected - 1)
                return [LocalDifference("gradient", LOSS, expected, measured, gap, cause, detail)]
        return []

    def _explain(
        self, own: Contributions, comparison: _Comparison, steps: StepRecorder, status: _Status, step: int
    ) -> list[Difference]:
        """Find likely causes with the other ranks, and put the differences of all ranks into one order."""
        agreement, parts = self._agreement, torch.cat([own.first, own.last])
        first, last = (agreement.sum(parts) / self._divisor).view(2, self._recorder.size)
        found: list[LocalDifference] = list(comparison.local)
        own_parts: dict[str, tuple[bool, bool]] = {}
        try:
            found += self._gradient_differences(comparison, first, last, status)
            own_parts = self._compare_own_part(own, comparison, steps)
        except Exception as error:  # the other ranks wait in the next collective
            found.append(LocalDifference("gradient", "?", 0.0, 0.0, 0.0, "unknown", f"{type(error).__name__}: {error}"))
        is_clipped_alone = _is_clipped_alone(comparison.numbers, math.sqrt(steps.squared_norm))
        return merge_differences(agreement.gather((found, own_parts, is_clipped_alone)), step)

    def _gradient_differences(
        self, comparison: _Comparison, first: torch.Tensor, last: torch.Tensor, status: _Status
    ) -> Iterator[LocalDifference]:
        numbers, verdict = comparison.numbers, comparison.verdict
        if numbers is None:
            return
        hypotheses = self._hypotheses(numbers, first, last, int(status.num_passes))
        for number in verdict.flagged:
            sample = self._recorder.samples[number]
            part = torch.arange(sample.start, sample.end)
            cause, detail = cause_of_gradient(part, numbers, verdict, hypotheses)
            if not status.num_calls:
                cause, detail = "stepped-again", ""
            elif verdict.differs_in_norm and cause == "unknown":
                cause = "clip-norm"
            expected = verdict.expected_factor * numbers.expected[part]
            gap = numbers.stepped[part] - expected
            worst = int(gap.abs().nan_to_num(nan=math.inf).argmax())
            values = float(expected[worst]), float(numbers.stepped[part][worst])
            relative = relative_size(float(gap.norm()), float(expected.norm()))
            yield LocalDifference("gradient", sample.name, *values, relative, cause, detail)

    def _compare_own_part(
        self, own: Contributions, comparison: _Comparison, steps: StepRecorder
    ) -> dict[str, tuple[bool, bool]]:
        """The differences of each wrong gradient that this rank's contribution shows, by parameter."""
        numbers, flagged = comparison.numbers, set(comparison.verdict.flagged)
        if numbers is None:
            return {}
        names = {d.parameter for d in comparison.local if d.kind == "gradient"}
        return {
            sample.name: fits_rank(torch.arange(sample.start, sample.end), numbers, own.total, steps, self._divisor)
            for number, sample in enumerate(self._recorder.samples)
            if number in flagged or sample.name in names
        }

    def _hypotheses(
        self, numbers: GradientNumbers, first: torch.Tensor, last: torch.Tensor, num_passes: int
    ) -> Hypotheses:
        by_cause: dict[str, torch.Tensor] = {}
        if num_passes > 1:
            by_cause |= {"last-micro-batch": last, "first-micro-batch": first}
        if num_passes > 2:
            by_cause |= {"micro-batch-lost": numbers.expected - last, "micro-batch-lost ": numbers.expected - first}
        earlier = [self._previous.get(s.name) for s in self._recorder.samples]
        if earlier and all(
            e is not None and len(e) == s.end - s.start for e, s in zip(earlier, self._recorder.samples, strict=True)
        ):
            by_cause["stale"] = torch.cat([e for e in earlier if e is not None])
        clip_grad = getattr(vars(self._engine).get("optimizer"), "clip_grad", None)
        return Hypotheses(
            by_cause,
            int(self._engine.gradient_accumulation_steps()),
            self._divisor,
            loss_scale_of(self._engine),
            float(clip_grad) if isinstance(clip_grad, (int, float)) else None,
        )


def _is_clipped_alone(numbers: GradientNumbers | None, norm: float) -> bool:
    """Has this rank's shard, whose stepped gradient has the norm `norm`, the length that the whole gradient should?"""
    if numbers is None or not numbers.clip or not numbers.norm > numbers.clip * (1 + 4 * NORM_TOLERANCE):
        return False
    return abs(norm / numbers.clip - 1) <= NORM_TOLERANCE


def _pack(own: Contributions, steps: StepRecorder) -> torch.Tensor:
    """Contributions, magnitudes, stepped gradients, weights before the step, owners; the squared norm."""
    stepped, is_here = steps.own_gradients(len(own.total))
    weights, owners = torch.zeros_like(own.total), is_here.double()
    for tensor in steps.tensors.values():
        if tensor.num_steps:
            weights[tensor.elements] = tensor.before["weights"]
    norm = torch.tensor([steps.squared_norm], dtype=torch.float64)
    return torch.cat([own.total, own.magnitude, stepped, weights, owners, norm])


LOSS = "loss"
"""In place of a parameter's name: the factor with which the gradient of the loss is multiplied."""


Answer = tuple[list[LocalDifference], dict[str, tuple[bool, bool]], bool]
"""Of one rank: what differs; by parameter, whether its own contribution is missing, and whether it alone is there; was
its gradient clipped to the norm of its own shard?
"""


def merge_differences(gathered: Sequence[Answer], step: int) -> list[Difference]:
    """One difference for each kind and cause, the one that differs most first."""
    seen: dict[tuple[str, str], tuple[int, LocalDifference]] = {}
    for rank, (differences, _, _) in enumerate(gathered):
        for difference in differences:
            seen.setdefault((difference.kind, difference.parameter), (rank, difference))
    if any(kind == "gradient" and parameter != LOSS for kind, parameter in seen):
        seen.pop(("gradient", LOSS), None)
    groups: dict[tuple[DifferenceKind, str], list[tuple[int, LocalDifference]]] = {}
    for rank, difference in seen.values():
        cause, detail = difference.cause, difference.detail
        if difference.kind == "gradient" and cause in ("unknown", "scaled"):
            cause, detail = _cause_over_ranks(difference, gathered)
        groups.setdefault((difference.kind, cause), []).append((rank, replace(difference, detail=detail)))
    order = {"gradient": 0, "update": 1, "weights": 2}
    result = []
    for (kind, cause), members in groups.items():
        rank, worst = max(members, key=lambda member: member[1].relative)
        result.append(
            Difference(
                step,
                kind,
                worst.parameter,
                rank,
                worst.expected,
                worst.found,
                worst.relative,
                cause,
                worst.detail,
                len(members),
            )
        )
    return sorted(result, key=lambda d: (order[d.kind], d.cause == "unknown", -d.num_parameters))


def _cause_over_ranks(difference: LocalDifference, gathered: Sequence[Answer]) -> tuple[str, str]:
    """Is the contribution of one rank missing, or has each rank stepped with its own, or clipped it alone?"""
    if difference.cause == "scaled" and all(is_clipped_alone for _, _, is_clipped_alone in gathered):
        return "clip-norm", "each rank clipped its own shard"
    answers = [own.get(difference.parameter) for _, own, _ in gathered]
    missing = [rank for rank, answer in enumerate(answers) if answer is not None and answer[0]]
    if missing and len(missing) < len(gathered):
        return "rank-left-out", f"rank {missing[0]}"
    if answers and all(answer is None or answer[1] for answer in answers) and any(answers):
        return "not-reduced", ""
    return difference.cause, difference.detail


def relative_size(gap: float, norm: float) -> float:
    """Infinite for a difference from zero."""
    return gap / norm if norm > 0 else math.inf if gap else 0.0
