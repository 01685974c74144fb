# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest

from harness.gates.divisors import largest_divisor


@pytest.mark.parametrize(
    ("limit", "numbers", "expected"),
    [(8, (12,), 6), (8, (12, 8), 4), (7, (7,), 7), (3, (7,), 1), (10**12, (12, 18), 6), (0, (5,), 1), (4, (0, 8), 4)],
)
def test_the_largest_divisor(limit, numbers, expected):
    assert largest_divisor(limit, *numbers) == expected
