"""`harness report` from the command line. Needs nothing; a second."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from harness.cli.report import find_run_dir
from harness.errors import Exit, Refused


def run(*arguments: str) -> Any:
    from harness.cli.app import build

    return CliRunner().invoke(build(list(arguments)), list(arguments))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    run_dir = tmp_path / "runs" / "a-20260101-000000"
    run_dir.mkdir(parents=True)
    (run_dir / "metrics.jsonl").write_text('{"type": "step", "step": 1, "loss": 2.0}\n', encoding="utf-8")
    (tmp_path / "runs" / "latest").symlink_to(run_dir.name)
    return run_dir


def test_it_prints_where_the_report_is(folder: Path) -> None:
    result = run("report", str(folder))
    assert result.exit_code == 0
    assert Path(result.stdout.strip()).read_text(encoding="utf-8").startswith("<!doctype html>")


def test_the_folder_of_all_runs_means_the_newest(folder: Path) -> None:
    assert find_run_dir(folder.parent) == folder.parent / "latest"
    result = run("report", str(folder.parent), "--output", str(folder / "x.html"))
    assert result.exit_code == 0
    assert "<h1>a-20260101-000000" in (folder / "x.html").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("name", "words"), [("nowhere", "does not exist"), ("file", "is not a folder"), (".", "is not a run")]
)
def test_what_is_not_a_run_directory_is_refused(tmp_path: Path, name: str, words: str) -> None:
    (tmp_path / "file").write_text("x", encoding="utf-8")
    with pytest.raises(Refused, match=words) as refused:
        find_run_dir(tmp_path / name)
    assert refused.value.code is Exit.USAGE


def test_a_place_that_cannot_be_written_is_refused(folder: Path) -> None:
    result = run("report", str(folder), "--output", str(folder / "no" / "such" / "x.html"))
    assert isinstance(result.exception, Refused)
    assert "cannot be written: no such file or directory" in str(result.exception)
