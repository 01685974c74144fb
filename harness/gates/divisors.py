# SPDX-License-Identifier: Apache-2.0
"""Divisors, for fixes that choose a size which fits."""

from __future__ import annotations

import math

_MAX_TRIALS = 100_000
"""Enough for every number up to ten billion; a stranger's file may have a number of 60 digits."""


def largest_divisor(limit: int, *numbers: int) -> int:
    """The largest number up to `limit` that divides all `numbers`; 1 where none was found."""
    common = math.gcd(*numbers)
    if not common:
        return max(limit, 1)
    small = [d for d in range(1, min(math.isqrt(common), _MAX_TRIALS) + 1) if common % d == 0]
    return max((d for each in small for d in (each, common // each) if d <= limit), default=1)
