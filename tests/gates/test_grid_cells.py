# SPDX-License-Identifier: Apache-2.0
"""The gates about faults of releases against the grid: for each red cell its file has a finding, for each right one no error.
Needs nothing; seconds.
"""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import pytest

from harness.check.check_file import check_file
from harness.facts.deepspeed_version import DeepSpeedTarget
from harness.facts.release_faults import RELEASE_FAULTS
from tests.releases.grid_file import load_grid
from tests.support.release_cells import cell_of, is_about

GRID = load_grid()
GATES = {fault.gate for fault in RELEASE_FAULTS}
SEEN_IN_FILES = ("stage", "offload", "accumulation", "format", "clipping", "caller")


def file_of(cell: dict[str, str]) -> dict[str, Any]:
    """DeepSpeed's JSON of a cell, with a learning rate that is used."""
    zero: dict[str, Any] = {"stage": int(cell["stage"])}
    if cell["offload"] != "none":
        zero["offload_optimizer"] = {"device": "nvme" if cell["offload"] == "nvme" else "cpu"}
    return {
        "train_micro_batch_size_per_gpu": 2,
        "gradient_accumulation_steps": int(cell["accumulation"]),
        "gradient_clipping": 1.0 if cell["clipping"] == "on" else 0.0,
        "optimizer": {"type": "Adam", "params": {"lr": 0.1}},
        "zero_optimization": zero,
        **({"bf16": {"enabled": True}} if cell["format"] == "bf16" else {}),
    }


@cache
def findings(release: str, settings: tuple[str, ...]) -> dict[str, str]:
    """Gate -> severity, of the gates of the rows."""
    cell = dict(zip(SEEN_IN_FILES, settings, strict=True))
    checked = check_file(
        "ds.json",
        deepspeed=DeepSpeedTarget(release, "requested"),
        consumer="hf" if cell["caller"] == "trainer" else "deepspeed",
        text=json.dumps(file_of(cell)),
        world_size=2,
    )
    return {finding.gate: finding.severity for finding in checked.report.findings if finding.gate in GATES}


@pytest.mark.parametrize("release", list(GRID["releases"]))
def test_the_file_of_each_red_cell_has_a_finding_and_of_no_right_one_an_error(release: str) -> None:
    result = GRID["releases"][release].get("cells", {})
    refused = {code for codes in result.get("refused", {}).values() for code in codes}
    rows = [fault for fault in RELEASE_FAULTS if fault.applies_to(release)]
    for code in GRID["cells"] if "red" in result else []:
        cell = cell_of(code)
        found = findings(release, tuple(cell[name] for name in SEEN_IN_FILES))
        if code in result["red"]:
            assert {row.gate for row in rows if is_about(row, cell)} <= set(found), code
        elif code not in refused and not any(is_about(row, cell) for row in rows):
            assert "error" not in found.values(), code
