# SPDX-License-Identifier: Apache-2.0
"""`harness runs`: the list as text and as JSON. Needs nothing; seconds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from harness.errors import UserError
from harness.run_records.run_list import find_run_dir
from tests.support.sample_run import eventful, head, step, tiny, write_run


def run(*arguments: str) -> Any:
    from harness.cli.app import build_app

    return CliRunner().invoke(build_app(list(arguments)), list(arguments))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    runs = tmp_path / "runs"
    eventful(runs / "large-20260921-120000", 60)
    write_run(
        runs / "tiny-20260101-000000", tiny(), [head(tiny(), time=1_767_225_600.0), step(1)], ("failed", "running")
    )
    write_run(runs / "new-20260102-000000", tiny(), None, ())
    (runs / "latest").symlink_to("large-20260921-120000")
    (runs / "notes").mkdir()
    return runs


def test_each_run_has_a_line_the_newest_first(folder: Path) -> None:
    result = run("runs", str(folder))
    assert result.exit_code == 0, result.output
    head_, one, two, three, _, count = result.stdout.splitlines()
    assert head_.split() == ["run", "state", "step", "loss", "held-out", "tokens/s", "MFU", "started", "attempts"]
    assert one.split()[:3] == ["large-20260921-120000", "completed", "60/1,000"]
    assert [float(word) for word in one.split()[3:6]] == pytest.approx([5.98, 6.12, 65.6], rel=0.01)
    assert one.split()[-1] == "2"
    assert two.split()[:3] == ["new-20260102-000000", "not", "started"]
    assert three.split()[:3] == ["tiny-20260101-000000", "failed", "3/30"]
    assert count == f"3 runs in {folder}"


def test_before_the_first_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only a folder that the user named must be there."""
    monkeypatch.chdir(tmp_path)
    result = run("runs")
    assert (result.exit_code, result.stdout) == (0, "no runs in runs; `harness launch SPEC` starts one\n")
    assert json.loads(run("runs", "--format", "json").stdout)["runs"] == []
    assert isinstance(run("runs", "runs").exception, UserError)
    with pytest.raises(UserError) as refused:
        find_run_dir("latest")
    assert "`harness runs` lists them, and `harness launch SPEC` starts one" in refused.value.findings[0].fix.title


def test_for_programs(folder: Path) -> None:
    body = json.loads(run("runs", str(folder), "--format", "json").stdout)
    assert [entry["state"] for entry in body["runs"]] == ["completed", "not started", "failed"]
    large = body["runs"][0]
    assert (large["step"], large["attempts"], large["lost"]) == (60, 2, 10)
    assert large["started_at"] == "2026-09-21T14:13:20+00:00"
    assert large["checkpoint"] == "checkpoints/step-00000060"
    assert body["runs"][1]["loss"] is None


def test_a_run_directory_means_itself_and_an_empty_folder_none(folder: Path) -> None:
    assert "1 run in" in run("runs", str(folder / "large-20260921-120000")).stdout
    assert (
        run("runs", str(folder / "notes")).stdout
        == f"no runs in {folder / 'notes'}; `harness launch SPEC` starts one\n"
    )
    result = run("runs", str(folder / "nowhere"))
    assert isinstance(result.exception, UserError)
    assert "no such file or directory" in str(result.exception)


def test_a_hostile_name_does_not_reach_the_terminal(tmp_path: Path) -> None:
    write_run(tmp_path / "\x1b[2Jevil", tiny(), [step(1)])
    assert "\x1b" not in run("runs", str(tmp_path)).stdout
