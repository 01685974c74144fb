# SPDX-License-Identifier: Apache-2.0
"""Sums over many elements."""

from __future__ import annotations

import math

import pytest
import torch

from harness.engine_witness.number_formats import sum_of_squares


def test_the_norm_of_many_elements_is_exact_where_torchs_is_not() -> None:
    # A partition in host memory has a billion elements. With 2**26, torch's norm on the CPU is 0.5 % too small; the
    # witness then said on an H100 that DeepSpeed clips by another norm than that of the gradient.
    piece = torch.randn(1 << 20, generator=torch.Generator().manual_seed(0)) * 1e-3
    tensor = piece.repeat(64)
    expected = 64 * float(piece.double().square().sum())

    assert float(sum_of_squares(tensor)) == pytest.approx(expected, rel=1e-4)
    assert abs(float(torch.linalg.vector_norm(tensor)) - math.sqrt(expected)) > 1e-3 * math.sqrt(expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_formats_and_shapes(dtype: torch.dtype) -> None:
    tensor = torch.tensor([[3.0, 4.0], [0.0, 12.0]], dtype=dtype)

    assert float(sum_of_squares(tensor)) == pytest.approx(169.0)
    assert float(sum_of_squares(tensor.t())) == pytest.approx(169.0)
    assert float(sum_of_squares(tensor[:0])) == 0.0
