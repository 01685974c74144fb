# SPDX-License-Identifier: Apache-2.0
"""Cells of the grid of releases, by their digits."""

from __future__ import annotations

from functools import cache

from harness.facts.release_faults import ReleaseFault
from tests.releases.grid_file import load_grid


def cell_of(code: str) -> dict[str, str]:
    """The cell of these digits: the number of its value in each dimension."""
    return {name: values[int(digit)] for (name, values), digit in zip(_dimensions().items(), code, strict=True)}


@cache
def _dimensions() -> dict[str, list[str]]:
    dimensions: dict[str, list[str]] = load_grid()["dimensions"]
    return dimensions


def is_about(fault: ReleaseFault, cell: dict[str, str]) -> bool:
    """Has the cell the values that the fault needs?"""
    return bool(fault.values) and all(cell[name] in values for name, values in fault.values.items())
