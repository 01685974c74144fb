# SPDX-License-Identifier: Apache-2.0
"""`harness launch --script`: what it would start, and files that it refuses. Nothing is started."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from harness.cli.app import main

SPEC = "objective: custom\ntrain: {max_steps: 4, per_device_train_batch_size: 2}\nlaunch: {num_gpus: 2}\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "specs").mkdir()
    (tmp_path / "specs" / "own.yaml").write_text(SPEC)
    (tmp_path / "train.py").write_text("import harness\n")
    return tmp_path


def launch(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["harness", "launch", "specs/own.yaml", "--dry-run", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    return int(ended.value.code or 0)


def test_the_dry_run_shows_the_script(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The option names a file of the current folder, wherever the spec is, and is its consent."""
    assert launch(monkeypatch, "--script", "train.py", "--format", "json") == 0
    out, err = capsys.readouterr()
    plan = json.loads(out)
    assert plan["argv"][-1] == "--script"
    assert any(v["name"] == "HARNESS_ALLOWED_CODE" for v in plan["environment"])
    assert "--script allows `plugins.script`" in err
    assert str(folder / "train.py") in err


def test_a_spec_does_not_allow_its_own_script(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    override = ("--set", "plugins.script=train.py")
    assert launch(monkeypatch, *override) == 1
    assert "MD157" in capsys.readouterr().err
    assert launch(monkeypatch, *override, "--allow-local-code") == 0


def test_a_file_that_is_not_there(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert launch(monkeypatch, "--script", "trian.py") == 2
    assert "there is no file `trian.py`: did you mean `train.py`?" in capsys.readouterr().err


def test_without_a_script_custom_names_both_ways(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert launch(monkeypatch) == 1
    assert "harness launch --script FILE SPEC" in capsys.readouterr().err
