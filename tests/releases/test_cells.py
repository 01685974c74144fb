# SPDX-License-Identifier: Apache-2.0
"""The covering array and the file of the grid."""

from __future__ import annotations

from itertools import combinations

import pytest

from tests.releases.cells import DIMENSIONS, Cell, covering_array, is_valid, needs_ops
from tests.releases.grid_file import cell_of, code_of, load_grid


@pytest.fixture(scope="module")
def cells() -> list[Cell]:
    return covering_array()


def test_each_valid_pair_stands_at_each_stage(cells: list[Cell]) -> None:
    others = [name for name in DIMENSIONS if name != "stage"]
    plain = {name: values[0] for name, values in DIMENSIONS.items()}
    seen = {(c["stage"], a, c[a], b, c[b]) for c in cells for a, b in combinations(others, 2)}
    wanted = {
        (stage, a, x, b, y)
        for stage in DIMENSIONS["stage"]
        for a, b in combinations(others, 2)
        for x in DIMENSIONS[a]
        for y in DIMENSIONS[b]
        if is_valid(plain | {"stage": stage, a: x, b: y})
    }
    assert seen == wanted


def test_the_file_has_these_cells(cells: list[Cell]) -> None:
    grid = load_grid()
    assert grid["dimensions"] == {name: list(values) for name, values in DIMENSIONS.items()}
    for part, has_ops in (("cells", False), ("ops", True)):
        assert grid[part] == [code_of(cell) for cell in cells if needs_ops(cell) == has_ops]
    assert all(cell_of(code_of(cell)) == cell for cell in cells)
