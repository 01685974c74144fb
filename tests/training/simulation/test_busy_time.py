# SPDX-License-Identifier: Apache-2.0
"""Intervals of time: a resource that work shares, and what nothing hides."""

from __future__ import annotations

import random

import pytest

from harness.runtime.simulation.busy_time import SharedResource, clip, exposed_seconds, subtract, total, union


def test_work_that_is_ready_later_leaves_a_gap_that_other_work_takes() -> None:
    resource = SharedResource()
    assert resource.reserve(5, 2) == (5, 7)
    assert resource.reserve(0, 3) == (0, 3)
    assert resource.reserve(1, 4) == (3, 9)  # 2 s in the gap, the rest after both
    assert resource.reserve(0, 1) == (9, 10)


def test_no_work_takes_time_that_is_taken() -> None:
    """Whatever comes in whatever order: the busy time is the sum of all work."""
    rnd = random.Random(7)  # noqa: S311
    resource, spans, seconds = SharedResource(), [], 0.0
    for _ in range(300):
        ready, length = rnd.uniform(0, 50), rnd.uniform(0.1, 1)
        start, end = resource.reserve(ready, length)
        assert start >= ready
        assert end - start >= length - 1e-9
        spans.append((start, end))
        seconds += length
    assert total(union(zip(resource._starts, resource._ends, strict=True))) == pytest.approx(seconds)
    assert max(end for _, end in spans) == pytest.approx(resource._ends[-1])


def test_forgotten_time_is_never_given_out() -> None:
    resource = SharedResource()
    for number in range(200):
        resource.reserve(2 * number, 1)
    resource.forget_before(300)
    assert len(resource._starts) < 60
    assert resource.reserve(300, 1) == (301, 302)


def test_sums_of_intervals() -> None:
    joined = union([(3, 5), (0, 1), (4, 6), (1, 1)])
    assert joined == [(0, 1), (3, 6)]
    assert subtract(joined, [(0.5, 4), (5, 5.5)]) == [(0, 0.5), (4, 5), (5.5, 6)]
    assert subtract(joined, []) == joined
    assert total(clip(joined, (0.5, 4))) == 1.5


def test_a_kind_is_exposed_where_none_before_it_is_busy() -> None:
    kinds = {"compute": [(0.0, 4.0)], "gather": [(3.0, 6.0), (5.0, 7.0)], "disk": [(1.0, 2.0), (6.0, 9.0)]}
    assert exposed_seconds(kinds, ["compute", "gather", "disk"]) == {"compute": 4, "gather": 3, "disk": 2}
