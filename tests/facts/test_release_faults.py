# SPDX-License-Identifier: Apache-2.0
"""The faults of releases against the grid: each red cell is in a row, each cell of a row is red, each row is a gate's."""

from __future__ import annotations

import pytest

from harness.facts.deepspeed_version import parse_version
from harness.facts.release_faults import RELEASE_FAULTS
from harness.gates.registry import all_gates
from tests.releases.grid_file import load_grid
from tests.support.release_cells import cell_of, is_about

GRID = load_grid()
RESULTS = [(release, part) for release, parts in GRID["releases"].items() for part in parts]
EACH_RESULT = pytest.mark.parametrize(("release", "part"), RESULTS)


def is_surely_seen(fault, cell):
    return is_about(fault, cell) and not any(cell[name] in values for name, values in fault.hidden_by.items())


def refused_cells(result):
    return {code for codes in result.get("refused", {}).values() for code in codes}


@EACH_RESULT
def test_each_red_cell_is_in_a_row(release, part):
    result = GRID["releases"][release][part]
    rows = [fault for fault in RELEASE_FAULTS if fault.applies_to(release)]
    unknown = [
        (code, difference, explanation)
        for code, (difference, explanation) in result.get("red", {}).items()
        if not any(is_about(row, cell_of(code)) for row in rows)
    ]
    assert unknown == []


@EACH_RESULT
def test_each_cell_of_a_row_is_red(release, part):
    result = GRID["releases"][release][part]
    if "not_run" in result:
        return
    seen = set(result["red"]) | refused_cells(result)
    for row in (fault for fault in RELEASE_FAULTS if fault.values and fault.applies_to(release)):
        assert [code for code in GRID[part] if is_surely_seen(row, cell_of(code)) and code not in seen] == [], row.name


@EACH_RESULT
def test_a_fault_that_is_explained_is_the_one_of_a_row(release, part):
    result = GRID["releases"][release][part]
    for code, (_, explanation) in result.get("red", {}).items():
        rows = [row for row in RELEASE_FAULTS if row.applies_to(release) and is_about(row, cell_of(code))]
        assert len(rows) > 1 or not explanation or explanation in {row.fault for row in rows}, code


def test_each_release_has_been_tried_with_all_cells():
    """Stages 1 and 2 of 0.18.7 to 0.18.9 cannot step with torch 2.13: `Output 0 of Split is a view`."""
    for release, parts in GRID["releases"].items():
        cells = parts["cells"]
        if "not_run" not in cells:
            assert cells["compared"] + len(refused_cells(cells)) == len(GRID["cells"]), release
            assert cells["compared"] >= 0.4 * len(GRID["cells"]), release


def test_the_grid_has_each_stage_with_each_accumulation():
    cells = [cell_of(code) for code in GRID["cells"]]
    assert len(cells) + len(GRID["ops"]) >= 60
    assert {(cell["stage"], cell["accumulation"]) for cell in cells} == {(s, a) for s in "0123" for a in "124"}


@pytest.mark.parametrize("gate", sorted({fault.gate for fault in RELEASE_FAULTS}))
def test_the_rows_of_a_gate_have_its_releases(gate):
    (found,) = (g for g in all_gates() if g.id == gate)
    rows = [fault for fault in RELEASE_FAULTS if fault.gate == gate]
    ends = tuple(parse_version(text) if text else None for text in (rows[0].first, rows[-1].last))
    assert (found.since, found.until) == ends
