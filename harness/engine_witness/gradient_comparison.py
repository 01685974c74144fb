# SPDX-License-Identifier: Apache-2.0
"""Comparison of the stepped gradients with the sums of what the ranks contributed.

The largest difference that rounding explains is that of a sum: each contribution is rounded a number of times on its
way (added to the accumulated gradient and to the partition, once a micro-batch; added once a rank in the all-reduce;
converted, divided, scaled), each time by at most the unit roundoff u of the widest format on that way. So the
difference of an element is at most K u times the sum of the magnitudes of its contributions (Higham, Accuracy and
Stability of Numerical Algorithms, 4.2).
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
"""Relative, of a norm of many elements in fp32 and of the factor that clips to it."""
_CLIP_EPS = 1e-6
"""torch and DeepSpeed divide by the norm plus this."""


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
    def roundings(self) -> float:
        """K. Of many roundings half cancel: eight times the square root is beyond what chance explains."""
        count = 2 * self.num_passes + self.num_ranks - 1 + CONVERSIONS
        return min(count, 8 * math.sqrt(count))

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
    flagged = _samples_with(wrong, samples)
    expected_factor, differs = factor, False
    if numbers.clip > 0 and not flagged:
        expected_factor = _factor_of_norm(numbers, factor)
        allowed_factor = NORM_TOLERANCE + numbers.relative_tolerance
        differs = abs(factor - expected_factor) > allowed_factor * expected_factor
        if differs:
            flagged = _samples_with(numbers.expected.abs() > numbers.tolerance, samples)
    return GradientVerdict(flagged, factor, expected_factor, differs and bool(flagged))


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
    segments, owned = segments_of(samples), numbers.is_owned

    def sum_up(values: torch.Tensor) -> torch.Tensor:
        return torch.zeros(len(samples), dtype=torch.float64).index_add_(0, segments[owned], values[owned])

    squares = sum_up(numbers.expected.square())
    has_gradient = squares > 16 * sum_up(numbers.tolerance.square())
    if not bool(has_gradient.any()):
        return 1.0
    squares = squares[has_gradient]
    factors = sum_up(numbers.stepped * numbers.expected)[has_gradient] / squares
    middle = factors.nanmedian()
    # A second look at those near the median: together they are more exact than one of them.
    near = (factors - middle).abs() <= 0.05 * middle.abs()
    if not bool(near.any()):
        return float(middle)
    return float((factors[near] * squares[near]).sum() / squares[near].sum())


def _samples_with(wrong: torch.Tensor, samples: Sequence[SampledParameter]) -> tuple[int, ...]:
    """The samples that have a wrong element."""
    return tuple(segments_of(samples)[wrong].unique().tolist()) if bool(wrong.any()) else ()
