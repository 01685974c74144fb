# SPDX-License-Identifier: Apache-2.0
"""`harness report` from the command line. Needs nothing; a second."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from harness.errors import ExitCode, UserError
from harness.run_records.run_list import find_run_dir


def run(*arguments: str) -> Any:
    from harness.cli.app import build_app

    return CliRunner().invoke(build_app(list(arguments)), list(arguments))


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
    assert find_run_dir(str(folder.parent)) == folder.parent / "latest"
    result = run("report", str(folder.parent), "--output", str(folder / "x.html"))
    assert result.exit_code == 0
    assert "<h1>a-20260101-000000" in (folder / "x.html").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("name", "words"), [("nowhere", "does not exist"), ("file", "is not a folder"), (".", "is not a run")]
)
def test_what_is_not_a_run_directory_is_refused(tmp_path: Path, name: str, words: str) -> None:
    (tmp_path / "file").write_text("x", encoding="utf-8")
    with pytest.raises(UserError, match=words) as refused:
        find_run_dir(str(tmp_path / name))
    assert refused.value.code is ExitCode.USAGE


def test_a_place_that_cannot_be_written_is_refused(folder: Path) -> None:
    result = run("report", str(folder), "--output", str(folder / "no" / "such" / "x.html"))
    assert isinstance(result.exception, UserError)
    assert "cannot be written: no such file or directory" in str(result.exception)


def test_a_name_below_runs_is_enough(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    newer = tmp_path / "runs" / "a-20260102-000000"
    newer.mkdir()
    (newer / "spec.yaml").write_text("name: a")
    (newer / "launch.json").write_text("{}")
    monkeypatch.chdir(tmp_path)
    for asked in ("a-20260101-000000", "a-20260101"):
        assert find_run_dir(asked).name == folder.name
    assert find_run_dir("a").name == newer.name
    assert find_run_dir("latest") == Path("runs/latest")
    with pytest.raises(UserError, match="does not exist") as refused:
        find_run_dir("b")
    assert newer.name in refused.value.findings[0].notes[0]


def test_several_runs_make_one_comparison(folder: Path) -> None:
    result = run("report", str(folder), str(folder.parent / "latest"))
    assert result.exit_code == 0, result.output
    assert result.stdout.strip() == str(folder / "comparison.html")
    assert "2 runs compared" in (folder / "comparison.html").read_text(encoding="utf-8")


def test_too_many_runs_are_refused(folder: Path) -> None:
    result = run("report", *[str(folder)] * 27)
    assert isinstance(result.exception, UserError)


def test_a_link_in_its_place_is_replaced_and_not_followed(folder: Path, tmp_path: Path) -> None:
    """A run directory of somebody else's must not choose which file of its reader's is overwritten."""
    mine = tmp_path / "mine"
    for name, runs in (("report.html", [folder]), ("comparison.html", [folder, folder])):
        mine.write_text("precious", encoding="utf-8")
        (folder / name).symlink_to(mine)
        result = run("report", *map(str, runs))
        assert result.exit_code == 0, result.output
        assert mine.read_text(encoding="utf-8") == "precious"
        assert not (folder / name).is_symlink()
        assert (folder / name).read_text(encoding="utf-8").startswith("<!doctype html>")
    asked = tmp_path / "asked.html"
    asked.symlink_to(mine)  # the user's own word
    assert run("report", str(folder), "-o", str(asked)).exit_code == 0
    assert asked.is_symlink()
    assert mine.read_text(encoding="utf-8").startswith("<!doctype html>")


@pytest.mark.parametrize("name", ["sample.txt", "spec.yaml", "ds_config.json", "findings.json"])
def test_a_link_shows_nothing_of_what_it_points_to(folder: Path, tmp_path: Path, name: str) -> None:
    mine = tmp_path / "mine"
    mine.write_text('{"findings": [{"message": "private"}], "private": 1}', encoding="utf-8")
    (folder / name).symlink_to(mine)
    assert run("report", str(folder)).exit_code == 0
    html = (folder / "report.html").read_text(encoding="utf-8")
    assert "private" not in html
    assert f"<code>{name}</code> was left out: it is a link" in html


def test_a_run_directory_may_be_a_link_itself(folder: Path) -> None:
    assert run("report", str(folder.parent / "latest")).exit_code == 0
    assert (folder / "report.html").is_file()


def test_words_for_numbers_in_a_plan_are_said_and_the_rest_is_shown(folder: Path) -> None:
    rung = {"title": "t", "gpu_by_kind": {"parameters": "many"}, "host_by_kind": {}, "nvme_by_kind": {}}
    (folder / "plan.json").write_text(json.dumps({"alternatives": [rung]}), encoding="utf-8")
    assert run("report", str(folder)).exit_code == 0
    html = (folder / "report.html").read_text(encoding="utf-8")
    assert "its <code>alternatives.0.gpu_by_kind.parameters</code> cannot be used" in html
    assert "training loss" in html
