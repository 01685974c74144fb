# SPDX-License-Identifier: Apache-2.0
"""The status files of ranks, also those that are torn or foreign. Needs nothing; milliseconds."""

from __future__ import annotations

import json

from harness.run_records.rank_statuses import RankStatus, read_statuses


def test_torn_and_foreign_files_are_left_out(tmp_path):
    folder = tmp_path / "status"
    folder.mkdir()
    (folder / "rank-00000.json").write_text(
        json.dumps({"rank": 0, "pid": 7, "state": "running", "step": 3, "time": 1.5, "new": 1})
    )
    for number, text in enumerate(["", "{", "[]", '{"rank": "x"}', "null"], start=1):
        (folder / f"rank-{number:05d}.json").write_text(text)
    assert read_statuses(tmp_path) == {0: RankStatus(0, "", 7, "running", 3, 1.5)}
