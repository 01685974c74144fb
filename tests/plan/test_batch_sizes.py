# SPDX-License-Identifier: Apache-2.0
"""The missing one of micro-batch, accumulation and global batch."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.run.batch_sizes import BatchSizes, resolve_batch_sizes


@pytest.mark.parametrize(
    ("given", "solved"),
    [
        ((2, None, None, 4), BatchSizes(2, 1, 8)),
        ((2, 3, None, 4), BatchSizes(2, 3, 24)),
        ((None, None, 8, 4), BatchSizes(2, 1, 8)),
        ((None, 2, 8, 4), BatchSizes(1, 2, 8)),
        ((2, None, 32, 4), BatchSizes(2, 4, 32)),
        ((2, None, 30, 4), BatchSizes(2, None, 30)),
        ((None, None, 7, 4), BatchSizes(None, 1, 7)),
        ((2, 4, 99, 4), BatchSizes(2, 4, 99)),
        ((None, 4, None, 4), BatchSizes(None, 4, None)),
        ((2, None, None, None), BatchSizes(2, 1, None)),
        ((2, None, 8, None), BatchSizes(2, None, 8)),
    ],
)
def test_the_missing_corner_of_the_triangle(given, solved):
    assert resolve_batch_sizes(*given) == solved


maybe = st.none() | st.integers(1, 64)


@given(maybe, maybe, maybe, maybe)
def test_what_is_given_is_never_changed_and_what_is_derived_is_right(micro, steps, total, data):
    solved = resolve_batch_sizes(micro, steps, total, data)
    for was, now in ((micro, solved.micro_batch), (steps, solved.accumulation), (total, solved.global_batch)):
        assert was is None or now == was
    if solved.is_complete and data and None in (micro, steps, total):
        assert solved.micro_batch * solved.accumulation * data == solved.global_batch
