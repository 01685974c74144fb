# SPDX-License-Identifier: Apache-2.0
"""`latest` and the name of a run, wherever a command takes a run. Needs nothing; seconds."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from harness.checkpoints.checkpoint_list import find_checkpoints_folder
from harness.checkpoints.evaluations import Evaluations
from harness.checkpoints.latest import find_complete
from harness.cli.app import build_app
from harness.errors import UserError
from harness.launching.programs.model_export import ExportOptions, plan_export
from harness.launching.setup.resume import resolve_resume
from harness.run_records.run_list import resolve_run_path
from harness.verdicts import Verdict, write_verdict
from tests.support.sample_checkpoints import make
from tests.support.sample_run import head, step, tiny, write_run

NAMES = ["latest", "tiny", "tiny-20260102", "runs", "runs/latest", "runs/tiny-20260102-000000"]
LOG = (
    "Traceback (most recent call last):\n[rank0]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1 GiB\n"
)


def run(*arguments: str) -> Result:
    return CliRunner().invoke(build_app(list(arguments)), list(arguments))


@pytest.fixture(autouse=True)
def newest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two runs below `runs`; the newer one has checkpoints and a log."""
    for day, seconds in (("01", 0.0), ("02", 60.0)):
        run_dir = tmp_path / "runs" / f"tiny-202601{day}-000000"
        write_run(run_dir, tiny(), [head(tiny(), time=1_767_225_600.0 + seconds), step(1)], ("completed", "completed"))
    (tmp_path / "runs" / "latest").symlink_to(run_dir.name)
    for number in (2, 4):
        make(run_dir / "checkpoints", number)
    (run_dir / "logs").mkdir(exist_ok=True)
    (run_dir / "logs" / "launcher.log").write_text(LOG, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return run_dir


@pytest.mark.parametrize("name", NAMES)
def test_a_name_means_the_same_run_everywhere(name: str, newest: Path) -> None:
    assert resolve_run_path(name).resolve() == newest
    assert "step-00000004" in run("checkpoint", "ls", name).stdout
    assert run("checkpoint", "verify", name).exit_code == 0
    assert "step-00000004" in run("checkpoint", "show", name).stdout
    assert run("checkpoint", "diff", name, f"{newest}/checkpoints/step-00000002").exit_code == 0
    assert "CUDA out of memory" in run("explain", "--log", name).stdout
    assert run("report", name).exit_code == 0
    assert find_complete(resolve_run_path(name)) is not None


def test_the_list_of_runs_takes_one_run(newest: Path) -> None:
    assert "2 runs in runs" in run("runs").stdout
    assert "1 run in runs/latest" in run("runs", "latest").stdout
    assert newest.name in run("runs", "tiny").stdout


def test_export_finds_the_checkpoint_of_a_name(newest: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harness.launching.programs.model_export.missing_packages_finding", lambda _: None)
    planned = plan_export(resolve_run_path("latest"), Path("exported"), ExportOptions())
    assert planned.checkpoint.resolve() == newest / "checkpoints" / "step-00000004"


def test_export_finds_the_best_checkpoint(newest: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harness.launching.programs.model_export.missing_packages_finding", lambda _: None)
    folder = newest / "checkpoints"
    for path, message in ((newest, "no checkpoint whose step was evaluated"), (folder / "step-00000004", "is one")):
        with pytest.raises(UserError, match=message):
            plan_export(path, Path("exported"), ExportOptions(), best=True)
    Evaluations({2: {"loss": 2.0}, 4: {"loss": 3.0}}).write(folder)
    for path in (newest, folder):
        assert plan_export(path, Path("exported"), ExportOptions(), best=True).checkpoint == folder / "step-00000002"
    assert plan_export(newest, Path("exported"), ExportOptions()).checkpoint == folder / "step-00000004"
    (folder / "step-00000002" / "manifest.json").unlink()
    assert plan_export(newest, Path("exported"), ExportOptions(), best=True).checkpoint == folder / "step-00000004"


def test_a_resume_takes_a_name_in_the_output_folder_of_the_spec(newest: Path) -> None:
    elsewhere = newest.parent.rename("outputs")
    with pytest.raises(UserError) as refused:
        resolve_resume("tinny", Path("outputs"), "tiny", {}, (), print)
    assert refused.value.findings[0].gate == "CK001"
    assert newest.name in refused.value.findings[0].notes[0]
    allowed = ("model", "data", "train", "optimizer", "scheduler", "precision", "zero", "parallel")
    source = resolve_resume("latest", Path("outputs"), "tiny", tiny().spec.model_dump(mode="json"), allowed, print)
    assert source.checkpoint == (elsewhere / newest.name / "checkpoints" / "step-00000004").resolve()


@pytest.mark.parametrize("words", [("checkpoint", "ls"), ("export", "nowhere", "out"), ("explain", "--log")])
def test_an_unknown_name_lists_the_runs(words: tuple[str, ...], newest: Path) -> None:
    result = run(*words, *([] if "nowhere" in words else ["nowhere"]))
    assert result.exit_code == 2 or isinstance(result.exception, UserError)
    shown = result.output + str(getattr(result.exception, "findings", ""))
    assert newest.name in shown


def test_a_path_comes_before_a_name(newest: Path) -> None:
    Path("tiny").mkdir()
    assert resolve_run_path("tiny") == Path("tiny")
    log = Path("latest")
    log.write_text(LOG, encoding="utf-8")
    assert resolve_run_path("latest") == log


@pytest.mark.parametrize(
    "words", [("checkpoint", "ls"), ("export", "NAME", "out"), ("explain", "--log"), ("report",), ("runs",)]
)
def test_a_path_that_cannot_be_looked_up_is_a_finding(words: tuple[str, ...]) -> None:
    """Such as one below a private folder; here its name is too long, which root cannot look up either."""
    name = "a" * 300
    result = run(*[name if word == "NAME" else word for word in words], *([] if "NAME" in words else [name]))
    assert isinstance(result.exception, UserError | SystemExit)
    shown = result.output + str(getattr(result.exception, "findings", ""))
    assert "cannot be read: file name too long" in shown


def test_a_run_directory_that_cannot_be_read_is_left_out(newest: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    readable = Path.is_file

    def is_file(path: Path) -> bool:
        if path.parent.name == newest.name:
            raise PermissionError(13, "Permission denied", str(path))
        return readable(path)

    monkeypatch.setattr(Path, "is_file", is_file)
    assert "1 run in runs" in run("runs").stdout


def test_a_run_that_has_not_saved_yet_is_not_told_to_name_itself(newest: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While a launch starts, `latest` already names it."""
    shutil.rmtree(newest / "checkpoints")
    monkeypatch.setattr("harness.launching.programs.model_export.missing_packages_finding", lambda _: None)
    questions = (
        lambda: find_checkpoints_folder(resolve_run_path("latest")),
        lambda: plan_export(resolve_run_path("latest"), Path("out"), ExportOptions()),
        lambda: resolve_resume("latest", Path("runs"), "tiny", {}, (), print),
    )
    for has_ended, words in ((False, "wait for its first save"), (True, "name another run")):
        if has_ended:
            write_verdict(newest, Verdict("failed", 1))
        for ask in questions:
            with pytest.raises(UserError, match="checkpoint") as refused:
                ask()
            title = refused.value.findings[0].fix.title
            assert title.startswith(words)
            assert "such as `latest`" not in title
