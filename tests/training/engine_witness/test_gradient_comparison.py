# SPDX-License-Identifier: Apache-2.0
"""The bound of rounding: sums in 16 bits stay below it, and a lost contribution does not."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from harness.engine_witness.gradient_comparison import GradientNumbers, compare_gradients
from harness.engine_witness.sampled_rows import SampledParameter, sample_rows
from tests.support.markdown_blocks import ROOT

RANKS, PASSES = 4, 3
PAGE = ROOT / "docs" / "engine-checks.md"
FORMATS = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}


def samples(number: int = 5, size: int = 400) -> list[SampledParameter]:
    parameters = {f"p{i}": torch.nn.Parameter(torch.empty(size, device="meta")) for i in range(number)}
    return sample_rows(parameters, 1, 0)


def sum_up(dtype: torch.dtype, seed: int) -> GradientNumbers:
    """Gradients of four ranks with three micro-batches each, which the engine adds up in `dtype`."""
    torch.manual_seed(seed)
    size = samples()[-1].end
    return add_in_turn((torch.randn(RANKS, PASSES, size) * 10.0 ** torch.randint(-4, 2, (size,))).to(dtype))


def add_in_turn(parts: torch.Tensor) -> GradientNumbers:
    """`parts`: (ranks, micro-batches, elements), whose mean the engine computes in their format."""
    ranks, passes, size = parts.shape
    dtype = parts.dtype
    stepped = torch.zeros(size, dtype=dtype)
    for rank in parts:
        own = torch.zeros(size, dtype=dtype)
        for part in rank:
            own += part / passes
        stepped += own / ranks
    exact = parts.double() / (ranks * passes)
    return GradientNumbers(
        expected=exact.sum((0, 1)),
        magnitude=exact.abs().sum((0, 1)),
        stepped=stepped.double(),
        is_owned=torch.ones(size, dtype=torch.bool),
        clip=0.0,
        norm=math.nan,
        roundoff=torch.finfo(dtype).eps / 2,
        scale_error=0.0,
        num_passes=passes,
        num_ranks=ranks,
        smallest=2.0**-25 if dtype == torch.float16 else 0.0,
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("seed", range(5))
def test_rounding_is_no_difference(dtype: torch.dtype, seed: int) -> None:
    assert compare_gradients(samples(), sum_up(dtype, seed)).flagged == ()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_one_wrong_element_is_a_difference(dtype: torch.dtype) -> None:
    numbers = sum_up(dtype, 0)
    first = samples()[1].start
    numbers.stepped[first + 12] *= 1.5
    assert compare_gradients(samples(), numbers).flagged == (1,)
    numbers.stepped[first + 12] = math.nan
    assert compare_gradients(samples(), numbers).flagged == (1,)


def test_a_gradient_that_nobody_steps_is_a_difference() -> None:
    numbers = sum_up(torch.float32, 0)
    numbers.is_owned[10] = False
    assert compare_gradients(samples(), numbers).flagged == (0,)


def typical_numbers(dtype: torch.dtype, ranks: int, passes: int) -> tuple[list[SampledParameter], GradientNumbers]:
    """96 parameters, whose gradient is as long as the noise of one micro-batch."""
    torch.manual_seed(0)
    of_model = samples(96, 4096)
    size = of_model[-1].end
    return of_model, add_in_turn((torch.randn(size) + torch.randn(ranks, passes, size)).to(dtype))


def rows_of_page() -> list[list[str]]:
    lines = [line.strip("| ").split(" | ") for line in PAGE.read_text().splitlines() if line.startswith("|")]
    return [row for row in lines if row[0] in FORMATS]


@pytest.mark.parametrize("row", rows_of_page(), ids=" ".join)
def test_the_page_has_the_smallest_error_that_is_seen(row: list[str]) -> None:
    ranks, passes = map(int, row[1].split(" x "))
    of_model, numbers = typical_numbers(FORMATS[row[0]], ranks, passes)
    assert compare_gradients(of_model, numbers).flagged == ()
    percents = [float(cell.removesuffix(" %")) / 100 for cell in row[2:]]
    element, parameter, model = percents
    assert element == pytest.approx(float((numbers.tolerance / numbers.expected.abs()).median()), rel=0.2)
    for error, seen in ((1.6 * parameter, 1), (1.6 * model, len(of_model))):
        end = of_model[seen - 1].end
        longer = replace(numbers, stepped=torch.cat([numbers.stepped[:end] * (1 + error), numbers.stepped[end:]]))
        flagged = set(compare_gradients(of_model, longer).flagged)
        assert flagged
        assert flagged <= set(range(seen))
        shorter = replace(numbers, stepped=torch.cat([numbers.stepped[:end] * (1 + error / 3), numbers.stepped[end:]]))
        assert compare_gradients(of_model, shorter).flagged == ()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize(("ranks", "passes"), [(1, 2), (8, 4), (64, 1), (1, 100), (200, 1)])
@pytest.mark.parametrize("kind", ["agree", "differ", "one value", "tiny", "few values"])
def test_what_rounding_does_by_chance_is_no_difference(dtype: torch.dtype, ranks: int, passes: int, kind: str) -> None:
    """Also where elements are rounded alike, and where the last of many terms are lost beside the others."""
    torch.manual_seed(ranks + passes)
    size = samples()[-1].end
    noise, mean = torch.randn(ranks, passes, size), torch.randn(size)
    values = {
        "agree": mean + 0.01 * noise,
        "differ": noise,
        "one value": torch.full_like(noise, 0.1234567),
        "tiny": 2e-7 * (mean + noise),
        "few values": mean.sign() * 1.01 ** torch.randint(3, (ranks, passes, 1)),
    }
    assert compare_gradients(samples(), add_in_turn(values[kind].to(dtype))).flagged == ()


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
