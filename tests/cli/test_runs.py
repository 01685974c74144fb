# SPDX-License-Identifier: Apache-2.0
"""`harness runs`: the list as text and as JSON. Needs nothing; seconds."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from harness.errors import UserError
from harness.run_records.run_list import find_run_dir
from harness.run_records.run_record import read_run_record
from harness.training_lineage import find_earlier_runs, find_first_run
from harness.views.report.page import render_report
from tests.support.sample_run import BEGAN, evaluation, eventful, head, save, step, tiny, write_run


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


def requeued_and_branched(runs: Path) -> None:
    """A training that was killed, requeued twice (the first time in vain), and left by a branch at step 10."""
    save_and_evaluate = [save(10), {**evaluation(10), "loss": 3.0}]
    parts: list[tuple[str, int, range, dict[str, str]]] = [
        ("a-1", 0, range(1, 16), {}),
        ("a-2", 10, range(0), {"training": "a-1", "parent": "a-1"}),
        ("a-3", 10, range(11, 31), {"training": "a-1", "parent": "a-1"}),
        ("a-4", 10, range(11, 21), {"training": "a-4", "parent": "a-1", "branch_of": "a-1"}),
    ]
    for number, (name, start, steps, launch) in enumerate(parts):
        lines = [head(tiny(), start_step=start, time=BEGAN + number)]
        lines += [step(n, loss=100.0 * number + n) for n in steps]
        lines += save_and_evaluate if start == 0 else [evaluation(steps[-1])] if steps else []
        files = {"launch.json": json.dumps({"name": "a", **launch})}
        state = "failed" if number == 0 else "completed"
        write_run(runs / name, tiny(), lines, (state,), files=files)


def test_a_training_is_one_line_and_its_branch_stands_below(tmp_path: Path) -> None:
    requeued_and_branched(tmp_path)
    lines = run("runs", str(tmp_path)).stdout.splitlines()
    assert [line.split()[0] for line in lines[1:3]] == ["a-3", "branch:"]
    assert (lines[1].split()[1:4], lines[1].split()[-1]) == (["completed", "30/30", "230.000"], "3")
    assert lines[2].split()[1:3] == ["a-4", "completed"]
    assert lines[-1] == f"2 runs of 4 launches in {tmp_path}"
    whole, branch = json.loads(run("runs", str(tmp_path), "--format", "json").stdout)["runs"]
    assert (whole["training"], whole["parts"], whole["first_loss"]) == ("a-1", ["a-1", "a-2", "a-3"], 1.0)
    assert (branch["branch_of"], branch["parts"], branch["lost"]) == ("a-1", ["a-4"], 5)
    record = read_run_record(tmp_path / "a-3").training
    assert record.points("step", "loss") == [(n, n if n <= 10 else 200.0 + n) for n in range(1, 31)]
    assert [step for step, _ in record.points("eval", "loss")] == [10, 30]
    page = render_report([read_run_record(tmp_path / "a-4")])
    assert "<dt>branch of</dt><dd>a-1" in page
    assert [mark["x"] for mark in charts_of(page)[0]["marks"] if mark["kind"] == "restart"] == [10]


def test_a_branch_that_was_resumed_stays_one(tmp_path: Path) -> None:
    requeued_and_branched(tmp_path)
    launch = json.dumps({"name": "a", "training": "a-4", "parent": "a-4"})
    lines = [head(tiny(), start_step=20, time=BEGAN + 9), step(21)]
    write_run(tmp_path / "a-5", tiny(), lines, ("completed",), files={"launch.json": launch})
    whole, branch = json.loads(run("runs", str(tmp_path), "--format", "json").stdout)["runs"]
    assert (whole["training"], branch["parts"], branch["branch_of"]) == ("a-1", ["a-4", "a-5"], "a-1")


def charts_of(page: str) -> list[dict[str, Any]]:
    charts: list[dict[str, Any]] = json.loads(page.partition('id="charts">')[2].partition("</script>")[0])
    return charts


def test_tags_and_notes_and_the_page(tmp_path: Path) -> None:
    requeued_and_branched(tmp_path)
    assert run("runs", str(tmp_path / "a-1"), "--tags", "baseline, b", "--note", "as published").exit_code == 0
    assert run("runs", str(tmp_path / "a-3"), "--note", "<good>").exit_code == 0
    whole, branch = json.loads(run("runs", str(tmp_path), "--format", "json").stdout)["runs"]
    assert (whole["tags"], whole["note"], branch["tags"]) == (["baseline", "b"], "<good>", [])
    assert run("runs", str(tmp_path)).stdout.splitlines()[1].endswith("3  baseline, b")
    page = tmp_path / "all.html"
    assert run("runs", str(tmp_path), "--html", str(page)).stdout == f"{page}\n"
    text = page.read_text()
    assert "<td class=note>&lt;good&gt;</td>" in text
    assert 'data-by="3.0">3.0000 at 10</td>' in text  # the best is in the first launch
    assert [len(series["xs"]) for series in charts_of(text)[0]["series"]] == [30, 20]
    assert not re.search(r'(src|href)="(https?:)?//', text)
    run("runs", str(tmp_path / "a-3"), "--tags", "-")
    assert json.loads(run("runs", str(tmp_path), "--format", "json").stdout)["runs"][0]["tags"] == []
    assert run("runs", "--note", "x").exit_code == 2
    assert isinstance(run("runs", str(tmp_path), "--html", str(tmp_path / "no/x.html")).exception, UserError)


def test_a_copied_run_reads_no_other_folder(tmp_path: Path) -> None:
    requeued_and_branched(tmp_path / "runs")
    for name in ("../runs/a-1", "..", "/etc", ".", ""):
        launch = {"training": name, "parent": name, "branch_of": name, "resume": f"/{name}/checkpoints/step-00000001"}
        folder = tmp_path / "mail" / str(len(name))
        write_run(folder, tiny(), [head(tiny(), start_step=10), step(11)], files={"launch.json": json.dumps(launch)})
        assert find_earlier_runs(folder) == []
        assert find_first_run(folder) == folder
    (tmp_path / "mail/a-1").symlink_to(tmp_path / "runs/a-1")
    (folder / "launch.json").write_text(json.dumps({"training": "a-1", "parent": "a-1"}))
    assert (find_earlier_runs(folder), find_first_run(folder)) == ([], folder)


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
