# SPDX-License-Identifier: Apache-2.0
"""Numbers of an estimate: two figures, one unit, a range. Needs nothing; instant."""

from __future__ import annotations

import pytest

from harness.views.plan_numbers import (
    format_estimate,
    format_number,
    format_range,
    format_share,
    format_size,
    format_time,
    format_time_range,
)


@pytest.mark.parametrize(
    ("value", "text"),
    [(6271, "6,300"), (0.4217, "0.42"), (9.96, "10"), (5.04, "5.0"), (151e6, "150 M"), (2.04e12, "2 T"), (0, "0")],
)
def test_a_number_has_two_figures(value: float, text: str) -> None:
    assert format_number(value) == text


@pytest.mark.parametrize(
    ("count", "text"),
    [(44.67 * 2**30, "44.7 GiB"), (1.304 * 2**40, "1.30 TiB"), (160.4 * 2**20, "160 MiB"), (512, "512 B")],
)
def test_a_size_has_one_decimal(count: float, text: str) -> None:
    assert format_size(count) == text


def test_ranges_have_one_unit() -> None:
    assert format_range((5017, 7838)) == "5,000 to 7,800"
    assert format_range((5.01, 5.02)) == "5.0"
    assert format_estimate(6271, (5017, 7838)) == "6,300 (5,000 to 7,800)"
    assert format_estimate(6271, None) == "6,300"
    assert format_time(167, (133.8, 209)) == "2.8 min (2.2 to 3.5)"
    assert format_time_range((0.36, 0.56)) == "360 to 560 ms"
    assert format_time_range((3000, 4000)) == "0.83 to 1.1 h"
    assert format_time(35 * 86400, (28 * 86400, 43 * 86400)) == "35 days (28 to 43)"


@pytest.mark.parametrize(("share", "text"), [(0.361, "36%"), (0.0994, "9.9%"), (0.0996, "10%"), (0.0004, "0.0%")])
def test_a_small_share_has_a_decimal(share: float, text: str) -> None:
    assert format_share(share) == text
