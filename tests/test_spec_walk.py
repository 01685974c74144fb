# SPDX-License-Identifier: Apache-2.0
"""The way of the spec through `harness launch`: few files, and downwards."""

from __future__ import annotations

import pytest

from tests.support.spec_walk import Walk, read_floors, walk_spec


@pytest.fixture(scope="module")
def walk() -> Walk:
    return walk_spec()


def test_the_walk_reaches_parser_gates_and_launch_plan(walk: Walk) -> None:
    """Without this the limits below would hold for a walk that lost sight of the spec."""
    assert {
        "harness.check.check_file",
        "harness.gates",
        "harness.launching.setup.launch_plan",
        "harness.render.ds_config",
        "harness.spec.spec_loader",
    } <= set(walk.files)


def test_the_spec_passes_through_few_files_and_seldom_climbs(walk: Walk) -> None:
    assert len(walk.files) <= 42, walk.files
    assert walk.climbs(read_floors()) < 22
