# SPDX-License-Identifier: Apache-2.0
"""Ranks that may simulate a device, once each."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.training.forked_ranks import ForkedRanks


@pytest.fixture(scope="session")
def simulated() -> Iterator[ForkedRanks]:
    ranks = ForkedRanks("simulation")
    yield ranks
    ranks.close()
