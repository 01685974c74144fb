# SPDX-License-Identifier: Apache-2.0
"""Comparison of the stepped gradients with the sums of what the ranks contributed.

The largest difference that rounding explains is that of a sum: each contribution is rounded a number of times on its
way (added to the accumulated gradient and to the partition, once a micro-batch; added once a rank in the all-reduce;
converted, divided, scaled), each time by at most the unit roundoff u of the widest format on that way. So the
difference of an element is at most K u times the sum of the magnitudes of its contributions (Higham, Accuracy and
Stability of Numerical Algorithms, 4.2).

In 16 bits that is percents of an element, and a gradient that is a percent too long would pass. But the roundings of
many elements cancel: each is up or down by chance. Along the expected gradient the differences of n elements sum up to
about the square root of n times one of them (Hoeffding's inequality), and so the length of a parameter's gradient, and
that of all together, is known far better than any element.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from harness.engine_witness.number_formats import U32
from harness.engine_witness.sampled_rows import SampledParameter, segments_of

CONVERSIONS = 8
"""Roundings of a contribution besides those of sums: conversions, divisions, unscaling, clipping."""
NORM_TOLERANCE = 1e-3
"""Relative, of a norm of many elements in fp32 and of the factor that clips to it, and the least of any length."""
_CHANCE = 6.0
"""Roundings that are up or down by chance exceed so many times the root of their squares once in 30 million sums."""
_MAX_TERMS_ROUNDOFF = 1 / 8, 1 / 2
"""Of the terms of a sum, times the unit roundoff: beyond the first, the roundings of one element may all go one way;
beyond the second, the last terms are lost beside the sum of the others, in all elements.
"""
_CLIP_EPS = 1e-6
"""torch and DeepSpeed divide by the norm plus this."""
_MAX_ERROR_OF_FACTOR = 0.25
"""Of a parameter whose gradient says something about the factor of clipping."""


@dataclass(frozen=True)
class GradientNumbers:
    """Sampled elements over all ranks, fp64 on the CPU."""

    expected: torch.Tensor
    """The mean over ranks and micro-batches, before clipping."""
    magnitude: torch.Tensor
    """The same of the magnitudes of all contributions."""
    stepped: torch.Tensor
    """The gradient that the optimizer is stepped with, where some rank has it."""
    is_owned: torch.Tensor
    """bool: some rank steps this element."""
    clip: float
    """The largest norm; 0 for none."""
    norm: float
    """Of all stepped gradients; NaN where it is not known."""
    roundoff: float
    """Unit roundoff of the widest format on the way of a gradient."""
    scale_error: float
    """Relative error of the measured factor of the loss."""
    num_passes: int
    num_ranks: int
    smallest: float
    """The distance of the smallest numbers of that format, over the loss scale."""

    @property
    def num_roundings(self) -> int:
        """Roundings of a contribution on its way."""
        return 2 * self.num_passes + self.num_ranks - 1 + CONVERSIONS

    @property
    def roundings(self) -> float:
        """K. Of many roundings half cancel: eight times the square root is beyond what chance explains."""
        return min(self.num_roundings, 8 * math.sqrt(self.num_roundings))

    @property
    def relative_tolerance(self) -> float:
        """Of the sum of the magnitudes."""
        return self.roundings * self.roundoff + 16 * U32 + self.scale_error

    @property
    def tolerance(self) -> torch.Tensor:
        """The largest difference of each element that rounding explains."""
        return self.relative_tolerance * self.magnitude + self.roundings * self.smallest + 1e-36


@dataclass(frozen=True)
class GradientVerdict:
    """`flagged`: the samples that differ. `factor`: of clipping, as measured; `expected_factor` as the norm has it."""

    flagged: tuple[int, ...] = ()
    factor: float = 1.0
    expected_factor: float = 1.0
    differs_in_norm: bool = False


def compare_gradients(samples: Sequence[SampledParameter], numbers: GradientNumbers) -> GradientVerdict:
    """Compare every sample. With clipping all may have one common factor, which must be that of their norm."""
    factor = _common_factor(samples, numbers) if numbers.clip > 0 else 1.0
    gap = (numbers.stepped - factor * numbers.expected).abs()
    allowed = max(factor, 1.0) * numbers.tolerance if numbers.clip > 0 else numbers.tolerance
    wrong = numbers.is_owned & ~(gap <= allowed)  # NaN is wrong
    wrong |= ~numbers.is_owned & (numbers.expected.abs() > numbers.tolerance)
    flagged = set(_samples_with(wrong, samples))
    lengths = measure_lengths(numbers, segments_of(samples), len(samples))
    too_far = (lengths.factors - factor).abs() > factor * lengths.errors.clamp_min(NORM_TOLERANCE)
    flagged |= set(too_far.nonzero().reshape(-1).tolist())
    has_gradient = _samples_with(numbers.expected.abs() > numbers.tolerance, samples)
    expected_factor, differs = factor, False
    if not flagged:
        together = measure_lengths(numbers, torch.zeros_like(segments_of(samples)), 1)
        error = float(together.errors[0])
        if numbers.clip > 0:
            expected_factor = _factor_of_norm(numbers, factor)
            # The engine may round the factor, too.
            allowed_factor = NORM_TOLERANCE + numbers.roundoff + min(error, numbers.relative_tolerance)
            differs = abs(factor - expected_factor) > allowed_factor * expected_factor
        if differs or (not numbers.clip and abs(float(together.factors[0]) - 1) > max(error, NORM_TOLERANCE)):
            flagged = set(has_gradient)
    return GradientVerdict(tuple(sorted(flagged)), factor, expected_factor, differs and bool(flagged))


@dataclass(frozen=True)
class GradientLengths:
    """Of groups of elements: the factors by which the stepped gradient is longer than the expected one, and the
    relative errors that rounding explains; infinite where nothing can be said.
    """

    factors: torch.Tensor
    errors: torch.Tensor


def measure_lengths(numbers: GradientNumbers, groups: torch.Tensor, num_groups: int) -> GradientLengths:
    """`groups`: the group of each element, int64."""

    def sum_up(values: torch.Tensor) -> torch.Tensor:
        return torch.zeros(num_groups, dtype=torch.float64).index_add_(0, groups[known], values)

    flushed = numbers.roundings * numbers.smallest + 1e-36
    known = numbers.is_owned & (numbers.expected.abs() > 16 * flushed)  # smaller ones are all rounded towards zero
    expected, magnitude = numbers.expected[known], numbers.magnitude[known]
    squares = sum_up(expected.square())
    largest = sum_up(expected.abs() * numbers.tolerance[known])
    terms = max(numbers.num_passes, numbers.num_ranks) * numbers.roundoff
    if terms <= _MAX_TERMS_ROUNDOFF[1]:
        # Elements with one mantissa are rounded alike: that is one chance for all of them.
        mantissas, group_of_mantissa = (groups[known] + torch.frexp(expected.abs()).mantissa).unique(
            return_inverse=True
        )
        alike = torch.zeros(len(mantissas), dtype=torch.float64)
        alike.index_add_(0, group_of_mantissa, expected.abs() * (numbers.roundoff * magnitude + numbers.smallest))
        chances = torch.zeros(num_groups, dtype=torch.float64).index_add_(0, mantissas.long(), alike.square())
        is_exact = _is_power_of_two(numbers.num_passes) and _is_power_of_two(numbers.num_ranks)
        shared = 16 * U32 + numbers.scale_error + (0 if is_exact else numbers.roundoff)
        count = numbers.num_roundings ** (1 if terms <= _MAX_TERMS_ROUNDOFF[0] else 2)
        spread = (count * chances / 3).sqrt()  # one rounding is anywhere between its bounds
        largest = torch.minimum(largest, shared * squares + _CHANCE * spread)
    factors = sum_up(numbers.stepped[known] * expected) / squares
    return GradientLengths(factors, (largest / squares).nan_to_num(nan=math.inf))


def fit_factor(found: torch.Tensor, expected: torch.Tensor) -> float:
    """s for which s * expected is nearest to found; NaN for an expected zero."""
    square = float(expected.square().sum())
    return float((found * expected).sum()) / square if square > 0 else math.nan


def _factor_of_norm(numbers: GradientNumbers, factor: float) -> float:
    """The factor that clips a gradient of which `factor` times has the norm `numbers.norm`."""
    if not math.isfinite(numbers.norm):
        return min(factor, 1.0)
    if factor <= 0:
        return 1.0
    return min(1.0, numbers.clip / (numbers.norm / factor + _CLIP_EPS))


def _common_factor(samples: Sequence[SampledParameter], numbers: GradientNumbers) -> float:
    """The median of the factors of all parameters, which a few wrong ones do not move."""
    segments = segments_of(samples)
    lengths = measure_lengths(numbers, segments, len(samples))
    is_exact = lengths.errors < _MAX_ERROR_OF_FACTOR
    if not bool(is_exact.any()):
        return 1.0
    factors = torch.where(is_exact, lengths.factors, torch.full_like(lengths.factors, math.nan))
    middle, position = factors.nanmedian(0)
    # A second look at those that rounding may have moved from it: together they are more exact than one of them. Each
    # counts by its error and not by its length: the longest may be the wrong one.
    near = is_exact & ((factors - middle).abs() <= middle.abs() * (lengths.errors + lengths.errors[position]))
    weights = lengths.errors[near].clamp_min(U32) ** -2
    return float((factors[near] * weights).sum() / weights.sum()) if bool(near.any()) else float(middle)


def _is_power_of_two(number: int) -> bool:
    """Is a division by it exact?"""
    return number > 0 and number & (number - 1) == 0


def _samples_with(wrong: torch.Tensor, samples: Sequence[SampledParameter]) -> tuple[int, ...]:
    """The samples that have a wrong element."""
    return tuple(segments_of(samples)[wrong].unique().tolist()) if bool(wrong.any()) else ()
