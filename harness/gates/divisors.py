# SPDX-License-Identifier: Apache-2.0
"""Divisors, for fixes that choose a size which fits."""

from __future__ import annotations


def largest_divisor(limit: int, *numbers: int) -> int:
    """The largest number up to `limit` that divides all `numbers`; 1 where there is no larger one.

    No positive number has a divisor above itself, so that a limit of a billion costs nothing.
    """
    highest = min([limit, *(number for number in numbers if number > 0)])
    return next((d for d in range(highest, 1, -1) if all(number % d == 0 for number in numbers)), 1)
