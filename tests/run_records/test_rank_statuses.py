# SPDX-License-Identifier: Apache-2.0
"""The status files of ranks, also those that are torn or foreign. Needs nothing; milliseconds."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from harness.progress import RANK_STATUS
from harness.run_records.rank_statuses import RankStatus, StatusReader, read_statuses


def test_torn_and_foreign_files_are_left_out(tmp_path):
    folder = tmp_path / "status"
    folder.mkdir()
    (folder / "rank-00000.json").write_text(
        json.dumps({"rank": 0, "pid": 7, "state": "running", "step": 3, "time": 1.5, "new": 1})
    )
    for number, text in enumerate(["", "{", "[]", '{"rank": "x"}', "null"], start=1):
        (folder / f"rank-{number:05d}.json").write_text(text)
    assert read_statuses(tmp_path) == {0: RankStatus(0, "", 7, "running", 3, 1.5)}


def write_status(folder: Path, rank: int, step: int) -> None:
    scratch = folder / "status" / ".new"
    scratch.write_text(json.dumps({"rank": rank, "pid": 7, "state": "running", "step": step}))
    scratch.replace(folder / "status" / f"rank-{rank:05d}.json")


def test_a_status_is_read_again_once_it_has_changed(tmp_path):
    (tmp_path / "status").mkdir()
    for rank in range(100):
        write_status(tmp_path, rank, 1)
    reader = StatusReader(tmp_path, 200)
    reader.refresh()
    assert (len(reader.statuses), reader.num_reads) == (100, 100)
    for rank in (3, 150):
        write_status(tmp_path, rank, 2)
    reader.refresh()
    assert reader.num_reads == 102
    assert {rank: s.step for rank, s in reader.statuses.items() if s.step != 1} == {3: 2, 150: 2}
    assert reader.statuses == read_statuses(tmp_path)


def test_a_look_of_many_ranks_goes_on_where_the_last_one_ended(tmp_path):
    (tmp_path / "status").mkdir()
    for rank in range(200):
        write_status(tmp_path, rank, 1)
    reader, looks = StatusReader(tmp_path, 200), 0
    while reader.is_mid_pass or not looks:
        reader.refresh(0.0)
        looks += 1
    assert looks > 2
    assert reader.statuses == read_statuses(tmp_path)


def test_a_foreign_folder_and_a_torn_file_are_not_read(tmp_path):
    (tmp_path / "elsewhere" / "status").mkdir(parents=True)
    write_status(tmp_path / "elsewhere", 0, 1)
    (tmp_path / "status").symlink_to(tmp_path / "elsewhere" / "status")
    reader = StatusReader(tmp_path, 2)
    reader.refresh()
    assert reader.statuses == {}
    (tmp_path / "status").unlink()
    (tmp_path / "status").mkdir()
    (tmp_path / "status" / "rank-00000.json").write_text("{")
    (tmp_path / "status" / "rank-00001.json").symlink_to(tmp_path / "elsewhere" / "status" / "rank-00000.json")
    reader.refresh()
    assert reader.statuses == {}


def test_a_status_that_no_disk_takes_is_read_from_a_line_of_output(tmp_path):
    (tmp_path / "status").mkdir()
    write_status(tmp_path, 1, 4)
    reader = StatusReader(tmp_path, 2)
    reader.refresh()
    body = {"rank": 1, "pid": 7, "state": "failed", "step": 6, "time": 2.0, "error": "no room", "refused": True}
    assert reader.read_line(f"[rank1]: {RANK_STATUS}{json.dumps(body)}")
    reader.refresh()
    assert reader.statuses[1] == RankStatus(1, "", 7, "failed", 6, 2.0, error="no room", refused=True)
    quoted = json.dumps(body | {"time": 3.0, "state": "completed"})
    assert not reader.read_line(f"[rank1]: record 3: {RANK_STATUS}{quoted}")
    assert reader.statuses[1].state == "failed"
    assert reader.read_line(f"host-a: [rank1]: {RANK_STATUS}{json.dumps(body)}")
    older = body | {"time": 1.0, "state": "running"}
    assert reader.read_line(RANK_STATUS + json.dumps(older))
    assert reader.statuses[1].state == "failed"


@pytest.mark.parametrize(
    "text", ["step 3", RANK_STATUS, f"{RANK_STATUS}[]", f"{RANK_STATUS}{{", f'{RANK_STATUS}{{"a":1}}']
)
def test_other_lines_of_output_are_no_status(tmp_path, text):
    assert not StatusReader(tmp_path, 2).read_line(text)


def test_a_line_about_a_rank_that_the_run_does_not_have_is_no_status(tmp_path):
    body = {"rank": 2, "pid": 7, "state": "failed"}
    assert not StatusReader(tmp_path, 2).read_line(RANK_STATUS + json.dumps(body))
