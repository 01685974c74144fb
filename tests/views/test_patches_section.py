# SPDX-License-Identifier: Apache-2.0
"""The section of the report about patches."""

from __future__ import annotations

import json
from pathlib import Path

from harness.run_records.run_record import read_run_record
from harness.views.report.page import render_report
from harness.views.report.run_sections import render_patches


def _with_header(folder: Path, **fields: object) -> str:
    (folder / "metrics.jsonl").write_text(json.dumps({"type": "run", **fields}) + "\n")
    return render_patches(read_run_record(folder))


def test_counts_and_what_is_off(tmp_path: Path) -> None:
    html = _with_header(
        tmp_path,
        patches={
            "zero3-leaf-params": "applied",
            "nvme-release": "not needed",
            "no-mlflow": "skipped: `a:<b>` is changed",
        },
    )
    assert "1 of 3 patches were applied" in html
    assert "<li><code>no-mlflow</code>: skipped: `a:&lt;b&gt;` is changed</li>" in html
    assert "<li><code>nvme-release" not in html
    assert "Caches the list of parameters of ZeRO-3" in html
    assert html in render_report([read_run_record(tmp_path)])


def test_a_patch_of_another_version_is_listed(tmp_path: Path) -> None:
    assert "<code>gone-patch</code>" in _with_header(tmp_path, patches={"gone-patch": "applied"})


def test_nothing_for_runs_that_recorded_none(tmp_path: Path) -> None:
    for fields in ({}, {"patches": None}, {"patches": "all"}, {"patches": {}}):
        assert _with_header(tmp_path, **fields) == ""
