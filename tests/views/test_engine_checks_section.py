# SPDX-License-Identifier: Apache-2.0
"""The section of the report about what a run asked its engine."""

from __future__ import annotations

import json
from pathlib import Path

from harness.run_records.run_record import read_run_record
from harness.views.report.run_sections import render_engine_checks


def _written(folder: Path, *claims: dict[str, object]) -> str:
    (folder / "engine_checks.json").write_text(json.dumps({"format_version": 1, "claims": claims}))
    return render_engine_checks(read_run_record(folder))


def test_counts_and_what_differs(tmp_path: Path) -> None:
    html = _written(
        tmp_path,
        {"id": "AT001", "question": "is it the stage?", "state": "holds"},
        {"id": "AT006", "question": "clipped?", "state": "differs", "text": "clips at `<b>`, should be 1"},
        {"id": "AT017", "question": "files?", "state": "skipped", "text": "the spec puts nothing on NVMe"},
    )
    assert "1 of 3 checks passed, 1 failed; 1 do not apply to this run" in html
    assert '<li class="bad">AT006: clips at <code>&lt;b&gt;</code>, should be 1</li>' in html


def test_nothing_where_nothing_was_asked(tmp_path: Path) -> None:
    assert render_engine_checks(read_run_record(tmp_path)) == ""
