# SPDX-License-Identifier: Apache-2.0
"""`harness checkpoint` as a user types it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from harness.checkpoints.evaluations import Evaluations
from harness.checkpoints.manifest import checksum
from harness.cli.app import build_app
from harness.errors import UserError
from tests.support.sample_checkpoints import make

RUNNER = CliRunner()


def call(*arguments: object, answer: str | None = None) -> Result:
    words = ["checkpoint", *map(str, arguments)]
    return RUNNER.invoke(build_app(words), words, input=answer)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run directory with checkpoints of steps 2, 4 and 6."""
    for step in (2, 4, 6):
        make(tmp_path / "checkpoints", step)
    Evaluations({2: {"loss": 3.0}, 4: {"loss": 2.0}}).write(tmp_path / "checkpoints")
    return tmp_path


def test_a_table_of_a_run(run: Path) -> None:
    (run / "checkpoints" / "step-00000002" / "manifest.json").unlink()
    result = call("ls", run)
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert lines[0].split()[:3] == ["checkpoint", "tokens", "size"]
    assert [line.split()[0] for line in lines[1:4]] == ["step-00000006", "step-00000004", "step-00000002"]
    assert "2.0000 (best)" in lines[2]
    assert "not complete" in lines[3]
    assert lines[-1].startswith("2 complete in ")
    assert lines[-1].endswith("newest step-00000006")
    body = json.loads(call("ls", run / "checkpoints", "--format", "json").stdout)
    assert (body["newest"], body["best"]) == ("step-00000006", "step-00000004")
    assert [c["complete"] for c in body["checkpoints"]] == [True, True, False]
    assert [c.get("loss") for c in body["checkpoints"]] == [None, 2.0, None]


def test_verify_reads_every_byte_of_every_checkpoint(run: Path) -> None:
    result = call("verify", run)
    assert result.exit_code == 0, result.output
    assert "3 of 3 intact; every byte was read" in result.stdout
    shard = next((run / "checkpoints" / "step-00000006").rglob("*rank_1*"))
    shard.write_bytes(b"X" + shard.read_bytes()[1:])
    assert call("verify", run, "--quick").exit_code == 0
    result = call("verify", run)
    assert result.exit_code == 1
    assert "error[CK101]" in result.stderr
    assert shard.name in result.stderr
    assert "error[CK115]" in result.stderr  # `latest` names it
    assert "damaged" in result.stdout
    body = json.loads(call("verify", run / "checkpoints" / "step-00000006", "--format", "json").stdout)
    assert [(c["whole"], [f["gate"] for f in c["findings"]]) for c in body["checkpoints"]] == [(False, ["CK101"])]
    assert call("verify", run / "checkpoints" / "step-00000004").exit_code == 0


def test_a_stale_pointer_is_found(run: Path) -> None:
    (run / "checkpoints" / "latest").write_text("step-00000002\n")
    result = call("verify", run)
    assert result.exit_code == 1
    assert "it names `step-00000002`, should name `step-00000006`" in result.stderr


def test_a_missing_pointer_is_damage_in_a_run_and_none_in_a_folder_of_downloads(run: Path) -> None:
    (run / "checkpoints" / "latest").unlink()
    assert call("verify", run / "checkpoints").exit_code == 0
    (run / "spec.resolved.json").write_text("{}")
    result = call("verify", run)
    assert result.exit_code == 1
    assert "it is missing, should name `step-00000006`" in result.stderr


def test_what_a_killed_removal_left_goes_with_the_next(run: Path) -> None:
    folder = run / "checkpoints"
    (folder / "step-00000006").rename(folder / ".trash-step-00000006-4711")
    (folder / "step-00000002").rename(folder / ".trash-step-00000002-4712")
    own = folder / ".trash-of-mine"
    own.mkdir()
    result = call("rm", folder / "step-00000006", "--yes")  # the same command again
    assert result.exit_code == 0, result.output
    assert "whose removal had been killed" in result.stdout
    assert sorted(p.name for p in folder.iterdir()) == [own.name, "evaluations.json", "latest", "step-00000004"]
    assert (folder / "latest").read_text() == "step-00000004\n"
    assert call("verify", run).exit_code == 0


def test_the_fields_of_a_manifest(run: Path) -> None:
    result = call("show", run)
    assert result.exit_code == 0, result.output
    rows = dict(line.split(None, 1) for line in result.stdout.splitlines()[1:] if len(line.split(None, 1)) == 2)
    assert rows["state.step"] == "6"
    assert rows["world"] == "2"
    assert rows["files"].startswith("5, the largest")
    assert "sha256" in result.stdout
    assert json.loads(call("show", run, "--format", "json").stdout)["state"]["step"] == 6


def test_two_manifests_side_by_side(run: Path) -> None:
    make(run / "checkpoints", 8, world=4, zero_stage=3)
    pair = (run / "checkpoints" / "step-00000002", run / "checkpoints" / "step-00000008")
    result = call("diff", *pair)
    assert result.exit_code == 0, result.output
    assert "world                  2 -> 4" in result.stdout
    changes = json.loads(call("diff", *pair, "--format", "json").stdout)["differences"]
    assert {"state.step", "world", "zero_stage"} <= {c["key"] for c in changes}
    assert "are equal" in call("diff", pair[0], pair[0]).stdout


def test_removing_asks_and_keeps_the_last_one(run: Path) -> None:
    folder = run / "checkpoints"
    newest = folder / "step-00000006"
    assert "Nothing was removed" in call("rm", newest, answer="n\n").stderr
    assert newest.exists()
    assert call("rm", newest, answer="y\n").exit_code == 0
    assert not newest.exists()
    assert (folder / "latest").read_text() == "step-00000004\n"
    assert call("rm", folder / "step-00000002", "--yes").exit_code == 0
    refused = call("rm", folder / "step-00000004", "--yes")
    assert isinstance(refused.exception, UserError)
    assert refused.exception.findings[0].gate == "CK114"
    assert call("rm", folder / "step-00000004", "--yes", "--force").exit_code == 0
    assert sorted(p.name for p in folder.iterdir()) == ["evaluations.json"]


@pytest.mark.parametrize(
    ("action", "name", "gate"),
    [
        ("ls", "none", "CK113"),
        ("verify", "empty", "CK113"),
        ("show", "empty", "CK113"),
        ("rm", "empty", "CK113"),
        ("diff", "empty", "SP011"),
    ],
)
def test_what_is_no_checkpoint(tmp_path: Path, action: str, name: str, gate: str) -> None:
    (tmp_path / "empty").mkdir()
    refused = call(action, tmp_path / name, *(["--yes"] if action == "rm" else []))
    assert isinstance(refused.exception, UserError)
    assert [f.gate for f in refused.exception.findings] == [gate]


def test_a_link_is_not_removed(run: Path) -> None:
    elsewhere = run / "elsewhere"
    shutil.copytree(run / "checkpoints" / "step-00000002", elsewhere)
    link = run / "checkpoints" / "step-00000009"
    link.symlink_to(elsewhere)
    refused = call("rm", link, "--yes", "--force")
    assert isinstance(refused.exception, UserError)
    assert elsewhere.is_dir()


def _rewritten(checkpoint: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """The manifest with a change, and a checksum that is right: it has no key."""
    body = json.loads((checkpoint / "manifest.json").read_text())
    change(body)
    (checkpoint / "manifest.json").write_text(json.dumps(body | {"checksum": checksum(body)}))


@pytest.mark.parametrize(
    ("keys", "value"),
    [
        (("bytes",), float("inf")),
        (("bytes",), "many"),
        (("files", "rank-00000.pt", "bytes"), float("inf")),
        (("files", "rank-00000.pt", "bytes"), 10**400),
        (("files", "rank-00000.pt", "sha256"), 7),
        (("state", "tokens"), "many"),
        (("state", "step"), True),
        (("world",), -1),
        (("spec",), [1]),
        (("spec", "model"), "m"),
        (("sha256",), [1]),
        (("saved_at",), {}),
    ],
)
def test_values_that_no_save_writes_cost_one_checkpoint_alone(run: Path, keys: tuple[str, ...], value: object) -> None:
    def change(body: dict[str, Any]) -> None:
        inner = body
        for key in keys[:-1]:
            inner = inner[key]
        inner[keys[-1]] = value

    _rewritten(run / "checkpoints" / "step-00000004", change)
    listed = call("ls", run)
    assert listed.exit_code == 0, listed.output
    assert "step-00000004  not complete: " in listed.stdout
    assert "2 complete in" in listed.stdout
    verified = call("verify", run)
    assert verified.exit_code == 1
    assert "error[CK101]" in verified.stderr
    assert "2 of 3 intact" in verified.stdout
    shown = call("show", run / "checkpoints" / "step-00000004")
    assert isinstance(shown.exception, UserError)
    assert "has no usable" in str(shown.exception)


@pytest.mark.parametrize("name", ["manifest.json", "latest", "evaluations.json"])
def test_a_pipe_among_the_files_hangs_nothing(run: Path, name: str) -> None:
    file = run / "checkpoints" / ("step-00000004/" + name if name == "manifest.json" else name)
    file.unlink()
    os.mkfifo(file)
    command = [sys.executable, "-P", "-m", "harness", "checkpoint"]
    for action in ("ls", "verify"):
        done = subprocess.run([*command, action, str(run)], text=True, capture_output=True, check=False, timeout=20)
        assert done.returncode in (0, 1), done.stderr
        assert "step-00000002" in done.stdout
        if name == "manifest.json":
            assert "cannot be read: not a regular file" in done.stdout + done.stderr


def test_control_characters_of_a_manifest_do_not_reach_the_terminal(run: Path) -> None:
    evil = "\x1b]0;title\x07\n::error::x\x9b2J"

    def change(body: dict[str, Any]) -> None:
        body |= {"dtype": evil, "saved_at": evil, evil: evil, "versions": {evil: evil}, "tag": evil}
        body["spec"] = body["spec"] | {"name": evil}
        body["files"][evil] = body["files"].pop("rank-00000.pt") | {"sha256": evil, "bytes": 10**9}

    one, other = (run / "checkpoints" / f"step-0000000{step}" for step in (4, 6))
    _rewritten(one, change)
    (run / "checkpoints" / "latest").write_text(evil)
    for words in (("ls", run), ("verify", run), ("show", one), ("diff", one, other)):
        result = call(*words)
        assert result.exit_code in (0, 1), result.output
        for character in "\x1b\x07\x9b":
            assert character not in result.stdout
        assert not any(line.startswith("::error") for line in result.stdout.splitlines())
