# SPDX-License-Identifier: Apache-2.0
"""Ranks that may simulate a device, once each."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from harness.facts.deepspeed_version import parse_version
from harness.hostinfo.machine import package_version
from tests.support.training.forked_ranks import ForkedRanks

TOO_OLD = parse_version(str(package_version("torch"))) < (2, 13)


@pytest.fixture(autouse=True, scope="session")
def _needs_torch() -> None:
    if TOO_OLD:
        pytest.skip("simulation needs torch 2.13")


@pytest.fixture(scope="session")
def simulated() -> Iterator[ForkedRanks]:
    ranks = ForkedRanks("simulation")
    yield ranks
    ranks.close()
