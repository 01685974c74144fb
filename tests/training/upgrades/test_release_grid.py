# SPDX-License-Identifier: Apache-2.0
"""A sample of the grid of `tests/releases`: two releases with known faults, overlaid by pip, and some of their cells. What is
red, and by which fault, is what `tests/releases/release_grid.json` says. A minute; pip's index where the overlays are not cached.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.releases.grid_file import cell_of, code_of, load_grid
from tests.releases.trials import run_cells

GRID = load_grid()


def sample(release: str) -> tuple[list[str], dict[str, Any]]:
    """Cells of a release: one for each fault that explains red ones, and as many right ones."""
    result = GRID["releases"][release]["cells"]
    red = {explanation: code for code, (_, explanation) in result["red"].items() if explanation}
    refused = {code for codes in result["refused"].values() for code in codes}
    right = [code for code in GRID["cells"] if code not in result["red"] and code not in refused]
    return [*red.values(), *right[:: len(right) // len(red)]], result["red"]


@pytest.mark.parametrize("release", ["0.18.2", "0.18.3"])
def test_a_release_trains_what_the_grid_says(release: str) -> None:
    codes, red = sample(release)
    rows = {
        code_of(dict(pair.split("=") for pair in row["key"].split(" "))): row
        for row in run_cells(release, [cell_of(code) for code in codes], reduce=False)
        if "key" in row
    }
    found = {code: row.get("is", "") for code, row in rows.items() if not row["off"] <= row["limit"]}
    assert found == {code: red[code][1] for code in codes if code in red}
    assert len(found) >= 4
