# SPDX-License-Identifier: Apache-2.0
"""`verdict.json`: written, read back, and ignored where it is something else. Needs nothing; milliseconds."""

from __future__ import annotations

import json
import os

import pytest

from harness.verdicts import VERDICT, Verdict, read_verdict, verdict_to_json, write_verdict

KILLED = Verdict(
    "failed",
    137,
    "killed by SIGKILL",
    1,
    "node1",
    24,
    ("a note",),
    signal="SIGKILL",
    cause="LG003",
    attempt=2,
    time=1.8e9,
)


@pytest.mark.parametrize(
    "verdict", [KILLED, Verdict("completed", 0, step=60), Verdict("stopped", 143, signal="SIGTERM")]
)
def test_what_is_written_is_read(tmp_path, verdict):
    write_verdict(tmp_path, verdict)
    assert read_verdict(tmp_path) == verdict


def test_a_later_release_may_say_more(tmp_path):
    (tmp_path / VERDICT).write_text(json.dumps({**verdict_to_json(KILLED), "weather": "fine", "format_version": 2}))
    assert read_verdict(tmp_path) == KILLED


@pytest.mark.parametrize(
    "change",
    [
        {"state": "great"},
        {"state": ["failed"]},
        {"exit_code": "137"},
        {"exit_code": True},
        {"rank": -1},
        {"rank": 1e300},
        {"rank": "1"},
        {"host": None},
        {"reason": {"a": 1}},
        {"step": float("inf")},
        {"time": float("nan")},
        {"time": "now"},
        {"notes": "one"},
        {"notes": [1]},
    ],
)
def test_a_value_that_no_launch_writes(tmp_path, change):
    (tmp_path / VERDICT).write_text(json.dumps({**verdict_to_json(KILLED), **change}))
    assert read_verdict(tmp_path) is None


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "null", "[" * 100_000, '{"state": "failed"}', "\udcff", " " * (2 << 20)]
)
def test_a_file_that_is_something_else(tmp_path, text):
    (tmp_path / VERDICT).write_text(text, errors="surrogateescape")
    assert read_verdict(tmp_path) is None


def test_no_file_a_folder_and_a_pipe(tmp_path):
    assert read_verdict(tmp_path) is None
    os.mkfifo(tmp_path / VERDICT)
    assert read_verdict(tmp_path) is None
    (tmp_path / VERDICT).unlink()
    (tmp_path / VERDICT).mkdir()
    assert read_verdict(tmp_path) is None
