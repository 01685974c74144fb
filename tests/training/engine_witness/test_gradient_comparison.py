# SPDX-License-Identifier: Apache-2.0
"""The bound of rounding: sums in 16 bits stay below it, and a lost contribution does not."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from harness.engine_witness.gradient_comparison import GradientNumbers, compare_gradients
from harness.engine_witness.sampled_rows import SampledParameter, sample_rows

RANKS, PASSES = 4, 3


def samples() -> list[SampledParameter]:
    parameters = {f"p{i}": torch.nn.Parameter(torch.zeros(40, 10)) for i in range(5)}
    return sample_rows(parameters, 1, 0)


def sum_up(dtype: torch.dtype, seed: int) -> GradientNumbers:
    """Gradients of four ranks with three micro-batches each, which the engine adds up in `dtype`."""
    torch.manual_seed(seed)
    size = samples()[-1].end
    parts = (torch.randn(RANKS, PASSES, size) * 10.0 ** torch.randint(-4, 2, (size,))).to(dtype)
    stepped = torch.zeros(size, dtype=dtype)
    for rank in parts:
        own = torch.zeros(size, dtype=dtype)
        for part in rank:
            own += part / PASSES
        stepped += own / RANKS
    exact = parts.double() / (RANKS * PASSES)
    return GradientNumbers(
        expected=exact.sum((0, 1)),
        magnitude=exact.abs().sum((0, 1)),
        stepped=stepped.double(),
        is_owned=torch.ones(size, dtype=torch.bool),
        clip=0.0,
        norm=math.nan,
        roundoff=torch.finfo(dtype).eps / 2,
        scale_error=0.0,
        num_passes=PASSES,
        num_ranks=RANKS,
        smallest=2.0**-25 if dtype == torch.float16 else 0.0,
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("seed", range(5))
def test_rounding_is_no_difference(dtype: torch.dtype, seed: int) -> None:
    assert compare_gradients(samples(), sum_up(dtype, seed)).flagged == ()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_one_wrong_element_is_a_difference(dtype: torch.dtype) -> None:
    numbers = sum_up(dtype, 0)
    numbers.stepped[60] *= 1.5
    assert compare_gradients(samples(), numbers).flagged == (1,)
    numbers.stepped[60] = math.nan
    assert compare_gradients(samples(), numbers).flagged == (1,)


def test_a_gradient_that_nobody_steps_is_a_difference() -> None:
    numbers = sum_up(torch.float32, 0)
    numbers.is_owned[10] = False
    assert compare_gradients(samples(), numbers).flagged == (0,)


@pytest.mark.parametrize("factor", [1.0, 0.25])
def test_clipping_is_measured(factor: float) -> None:
    """All samples share the factor, and it is that of the norm."""
    numbers = sum_up(torch.float32, 0)
    norm = 8.0
    clip = norm * factor if factor < 1 else 2 * norm
    clipped = replace(numbers, stepped=numbers.stepped * factor, clip=clip, norm=norm * factor)
    verdict = compare_gradients(samples(), clipped)
    assert (verdict.flagged, verdict.differs_in_norm) == ((), False)
    assert verdict.factor == pytest.approx(factor, rel=1e-5)
    other = replace(clipped, stepped=clipped.stepped * 0.9, norm=clipped.norm * 0.9)
    verdict = compare_gradients(samples(), other)
    assert len(verdict.flagged) == 5
    assert verdict.differs_in_norm
