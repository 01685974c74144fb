# SPDX-License-Identifier: Apache-2.0
"""Attacks by the files of a run directory, on what reads them: `report`, `runs`, `explain`, the supervisor."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from harness import input_limits
from harness.checkpoints.evaluations import Evaluations
from harness.run_records import run_files
from harness.run_records.rank_statuses import read_statuses
from harness.run_records.run_files import read_metrics
from harness.run_records.run_list import list_run_summaries
from harness.run_records.run_record import read_run_record
from harness.verdicts import VERDICT, read_verdict
from tests.security.attempts import Attempt, attempt_param
from tests.security.hostile_calls import call, within
from tests.support.restarts import read_restarts

PRIVATE = "what only the reader may know"
FILES = (
    "metrics.jsonl",
    "plan.json",
    "findings.json",
    "restarts.json",
    "engine_checks.json",
    "launch.json",
    "spec.yaml",
    "spec.resolved.json",
    "ds_config.json",
    "sample.txt",
    "lock",
    "stop",
    VERDICT,
    "status/rank-00000.json",
    "checkpoints/evaluations.json",
    "checkpoints/latest",
    "logs/launcher.log",
)
"""Everything that commands read in a run directory."""


def _pipe(file: Path) -> None:
    os.mkfifo(file)


def _socket(file: Path) -> None:
    folder = os.open(file.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:  # the name of a socket has 107 characters
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(f"/proc/self/fd/{folder}/{file.name}")
    finally:
        os.close(folder)


def _device(file: Path) -> None:
    file.symlink_to("/dev/zero")


def _link(file: Path) -> None:
    secret = file.parent / ".private"
    secret.write_text(json.dumps({"state": PRIVATE, "attempts": [{"cause": PRIVATE}], "rank": 0, "reason": PRIVATE}))
    file.symlink_to(secret)


def _deep(file: Path) -> None:
    file.write_text('{"attempts":' + "[" * 100_000 + "]" * 100_000 + "}")


def _sparse(file: Path) -> None:
    file.touch()
    os.truncate(file, 2**40)


KINDS = [
    attempt_param(
        Attempt(
            "I52",
            "Each file of a run directory is a pipe",
            "a restart waited for a writer of `restarts.json` for ever, other readers left it out",
            "each is left out",
        ),
        _pipe,
    ),
    attempt_param(
        Attempt("I53", "Each file of a run directory is a socket", "each was left out", "each is left out"), _socket
    ),
    attempt_param(
        Attempt(
            "I54",
            "Each file of a run directory is a link to `/dev/zero`",
            "a restart read `restarts.json` without an end, other readers left it out",
            "each is left out",
        ),
        _device,
    ),
    attempt_param(
        Attempt(
            "I55",
            "Each file of a run directory is a link to a file of the reader",
            "a restart read `restarts.json` through it, other readers did not",
            "no word of it gets into any output",
        ),
        _link,
    ),
    attempt_param(
        Attempt(
            "I56",
            "Each file of a run directory is JSON nested 100,000 deep",
            "RecursionError for `restarts.json`, the others were left out",
            "each is left out",
        ),
        _deep,
    ),
    attempt_param(
        Attempt(
            "I57",
            "Each file of a run directory is a sparse file of 1 TB",
            "`report` read `metrics.jsonl` at 3 s a GiB, almost an hour",
            "each is left out, `metrics.jsonl` from its first line of 16 MiB on",
        ),
        _sparse,
    ),
]


@pytest.mark.parametrize("replace", KINDS)
def test_every_file(tmp_path: Path, replace: Callable[[Path], None]) -> None:
    """Each alone, beside a `spec.yaml` that says that this is a run; then all of them through the commands."""
    for number, name in enumerate((*FILES, "")):
        run = tmp_path / f"run-{number}"
        for file in [name] if name else FILES[:-1]:
            (run / file).parent.mkdir(parents=True, exist_ok=True)
            replace(run / file)
        if name != "spec.yaml":
            (run / "spec.yaml").unlink(missing_ok=True)
            (run / "spec.yaml").write_text("model: {}\n")
        with within(10):
            record = read_run_record(run)
            read = [record, list_run_summaries(tmp_path), read_statuses(run), read_verdict(run), read_restarts(run)]
            read.append(Evaluations.read(run / "checkpoints"))
        assert PRIVATE not in repr(read)
    with within(10):
        said = call("runs", tmp_path) + call("report", run) + (run / "report.html").read_text()
        said += call("explain", "--log", run)
    assert PRIVATE not in said


@Attempt(
    "I58",
    "`metrics.jsonl` has a line of 20 MiB after its first row",
    "it was read in pieces of 16 MiB, to the end of the file",
    "the rows before it are shown, and the report says where it stopped",
)
def test_long_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(input_limits, "RUN_LINE", 1 << 10)
    (tmp_path / "metrics.jsonl").write_text('{"type":"step","step":1}\n' + "x" * 3000 + '\n{"type":"step","step":2}\n')
    rows, _, reason = read_metrics(tmp_path)
    assert [row["step"] for row in rows] == [1]
    assert reason.startswith("all from line 2 on")


@Attempt(
    "I59",
    "`metrics.jsonl` has a hundred million rows of eight bytes",
    "all became objects in memory",
    "reading ends after 10 million rows, and the report says so",
)
def test_many_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_files.input_limits, "METRICS_LINES", 100)
    (tmp_path / "metrics.jsonl").write_text('{"a":1}\n' * 1000)
    rows, _, reason = read_metrics(tmp_path)
    assert len(rows) == 100
    assert reason.startswith("all from line 101 on")


@Attempt(
    "I60",
    "`restarts.json` has a list, a number and texts as its attempts",
    "they were given to the supervisor as attempts",
    "what is no attempt is left out",
)
def test_attempts_of_wrong_types(tmp_path: Path) -> None:
    for attempts, expected in (([3, "x", [], {"number": 1}], [{"number": 1}]), (7, []), ("ab", []), ({"a": 1}, [])):
        (tmp_path / "restarts.json").write_text(json.dumps({"attempts": attempts}))
        assert read_restarts(tmp_path) == expected
