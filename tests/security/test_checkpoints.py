# SPDX-License-Identifier: Apache-2.0
"""Attacks by a checkpoint's manifest and folder, on commands that load nothing."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from harness.checkpoints import manifest, removal, retention
from harness.checkpoints.evaluations import EVALUATIONS
from harness.checkpoints.manifest import MANIFEST, read_manifest
from harness.errors import UserError
from tests.security.attempts import Attempt, attempt_param
from tests.security.hostile_calls import call, edit_manifest, file_entry, nest_folders, within
from tests.support.sample_checkpoints import make

STEP = "checkpoints/step-00000004"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run directory with checkpoints of steps 2 and 4."""
    for step in (2, 4):
        make(tmp_path / "run/checkpoints", step)
    return tmp_path / "run"


NAMES = [
    attempt_param(
        Attempt(
            "K1",
            "A manifest lists a file whose name is half of a surrogate pair",
            "`verify` and `show` ended in a crash log: UnicodeEncodeError",
            "CK112, the path is outside the checkpoint",
        ),
        "a\ud800",
    ),
    attempt_param(
        Attempt("K2", "A manifest lists `../../../etc/passwd`", "CK112", "CK112, the path is outside the checkpoint"),
        "../../../etc/passwd",
    ),
    attempt_param(
        Attempt("K3", "A manifest lists `/etc/passwd`", "CK112", "CK112, the path is outside the checkpoint"),
        "/etc/passwd",
    ),
    attempt_param(
        Attempt("K4", "A manifest lists a name with a null byte", "CK112", "CK112, the path is outside the checkpoint"),
        "a\0b",
    ),
]


@pytest.mark.parametrize("name", NAMES)
def test_names_that_lead_elsewhere(run: Path, name: str) -> None:
    edit_manifest(run / STEP, lambda body: body["files"].update({name: file_entry()}))
    said = call("checkpoint", "verify", run) + call("checkpoint", "show", run / STEP)
    assert "CK112" in said
    assert "outside the checkpoint" in said
    assert "step-00000002" in said


@Attempt(
    "K5",
    "A manifest names `rank-00000.pt` again in capitals, a name of 300 bytes, one 6,000 levels deep, and a line break "
    "with `::error::`",
    "each was missing or unreadable, and no workflow command was written",
    "each is missing or unreadable, and no workflow command is written",
)
def test_odd_names(run: Path) -> None:
    names = ("Rank-00000.PT", "x" * 300, "d/" * 6000 + "x", "a\n::error::x", "a\x1b[2J")
    edit_manifest(run / STEP, lambda body: body["files"].update({name: file_entry() for name in names}))
    said = call("checkpoint", "verify", run)
    assert said.count("error[CK101]") == len(names)
    assert "\n::error::x" not in said
    assert "\x1b" not in said


@Attempt(
    "K6",
    "The `tag` of a manifest is half of a surrogate pair",
    "`verify` called the checkpoint whole",
    "CK101, no usable `tag`",
)
def test_tag(run: Path) -> None:
    edit_manifest(run / STEP, lambda body: body.update(tag="\ud800"))
    assert "no usable `tag`" in call("checkpoint", "verify", run)


@Attempt(
    "K7",
    "A manifest's `format_version` is a text of 20,000 characters",
    "all of it was printed",
    "its first 40 characters are printed",
)
def test_format_version(run: Path) -> None:
    edit_manifest(run / STEP, lambda body: body.update(format_version="x" * 20_000))
    said = call("checkpoint", "verify", run)
    assert "CK101" in said
    assert len(said) < 2000


@Attempt(
    "K8",
    "A manifest lists a million files of 2^62 bytes",
    "`ls` took 12 s, `show` 31 s",
    "CK112 before the entries are read",
)
def test_many_files(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manifest, "_MAX_FILES", 100)
    edit_manifest(run / STEP, lambda body: body["files"].update({f"f{i}": file_entry(2**62) for i in range(100)}))
    assert "lists 105 files, more than any save writes" in call("checkpoint", "verify", run)


@Attempt(
    "K63",
    "The `tokens` of a manifest's state are null",
    "`ls` ended in a traceback: TypeError",
    "CK101, no usable `state`",
)
def test_count_that_is_null(run: Path) -> None:
    edit_manifest(run / STEP, lambda body: body["state"].update(tokens=None))
    assert "step-00000002" in call("checkpoint", "ls", run)
    assert "no usable `state`" in call("checkpoint", "verify", run)


ODD: list[Any] = [None, [], [[]], {}, {"a": {}}, "\x1b[2J", "\ud800", -1, 2**63, True, float("nan"), float("inf"), 1.5]


@Attempt(
    "K9",
    "Each value of a manifest is replaced by null, lists, maps, ESC, a surrogate, -1, 2^63, true, NaN, Infinity",
    "each was refused or shown, without a traceback",
    "each is refused or shown, without a traceback",
)
def test_every_field(run: Path) -> None:
    body = json.loads((run / STEP / MANIFEST).read_text())
    for key in body.keys() - {"checksum", "format_version"}:
        for value in ODD:
            edit_manifest(run / STEP, lambda b, key=key, value=value: b.update({key: value}))  # type: ignore[misc]
            assert _gate_of(run / STEP) in ("", "CK101", "CK108", "CK112")
            (run / STEP / MANIFEST).write_text(json.dumps(body))
    for value in ODD:
        edit_manifest(run / STEP, lambda b, value=value: b.update(versions={"x": value}, saved_at=str(value)))  # type: ignore[misc]
        said = call("checkpoint", "show", run / STEP)
        assert "\x1b" not in said


def _gate_of(checkpoint: Path) -> str:
    """The finding about a manifest; empty where it can be read."""
    try:
        return str(read_manifest(checkpoint).bytes * 0 or "")
    except UserError as refused:
        return refused.findings[0].gate


@Attempt(
    "K10",
    "A manifest is nested 100,000 deep, and so is `evaluations.json`",
    "CK108, and no best checkpoint",
    "CK108, and no best checkpoint",
)
def test_deep(run: Path) -> None:
    deep = '{"a":' + "[" * 100_000 + "]" * 100_000 + "}"
    (run / STEP / MANIFEST).write_text(deep)
    (run / "checkpoints" / EVALUATIONS).write_text(deep)
    assert "CK108" in call("checkpoint", "verify", run)
    assert "best" not in call("checkpoint", "ls", run)


@Attempt(
    "K11",
    "A file of a checkpoint is a sparse file of 1 TB that its manifest gives 10 bytes",
    "CK101 by its size, and not a byte was read",
    "CK101 by its size, and not a byte is read",
)
def test_sparse_file(run: Path) -> None:
    os.truncate(run / STEP / "rank-00000.pt", 2**40)
    with within(2):
        assert "has 1099511627776 bytes, should have 7" in call("checkpoint", "verify", run / STEP)


@Attempt(
    "K12",
    "A checkpoint has folders nested 1,100 deep",
    "`verify` ended in a crash log: RecursionError",
    "a warning about a file that the manifest does not list",
)
@Attempt(
    "K13",
    "`checkpoint rm` of a checkpoint with folders nested 1,100 deep",
    "RecursionError after the rename: what was left was neither a checkpoint nor gone",
    "CK113 before the rename",
)
def test_deep_folders(run: Path) -> None:
    nest_folders(run / STEP, 1100)
    try:
        said = call("checkpoint", "verify", run / STEP)
        assert "which its manifest does not list" in said
        assert "whole" in said
        assert "nested more than 64 deep" in call("checkpoint", "rm", run / STEP, "--yes")
        assert (run / STEP / MANIFEST).is_file()
    finally:
        subprocess.run(["rm", "-rf", str(run / STEP / "d")], check=True)


@Attempt(
    "K14",
    "`checkpoint rm` in a run whose `checkpoints` is a link of another user to the caller's own run",
    "the caller's own checkpoint was removed",
    "CK113, a link that another user made",
)
def test_rm_through_a_link_of_another_user(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hostile = tmp_path / "hostile"
    hostile.mkdir()
    (hostile / "checkpoints").symlink_to(run / "checkpoints")
    monkeypatch.setattr(removal.os, "geteuid", lambda: os.getuid() + 1)
    monkeypatch.setattr(removal, "ROOT", -1)
    assert "is a link that another user made" in call("checkpoint", "rm", hostile / STEP, "--yes")
    assert (run / STEP / MANIFEST).is_file()


def test_rm_through_a_link_of_the_user(run: Path, tmp_path: Path) -> None:
    """Many link `checkpoints` to a larger disk."""
    (tmp_path / "other").mkdir()
    (tmp_path / "other/checkpoints").symlink_to(run / "checkpoints")
    assert "removed" in call("checkpoint", "rm", tmp_path / "other" / STEP, "--yes")
    assert not (run / STEP).exists()


@Attempt(
    "K15",
    "The folder of checkpoints is swapped for a link while `rm` removes",
    "a folder of that name behind the link was removed",
    "the removal goes on in the folder that was opened",
)
def test_swap_of_the_folder(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trash = tmp_path / f"private/.trash-step-00000004-{os.getpid()}"
    trash.mkdir(parents=True)
    real, folder = os.fsync, run / "checkpoints"

    def swap(descriptor: int) -> None:
        real(descriptor)
        folder.rename(tmp_path / "moved")
        folder.symlink_to(trash.parent)

    monkeypatch.setattr(retention.os, "fsync", swap)
    retention.remove_checkpoint(run / STEP)
    assert trash.is_dir()
    assert sorted(p.name for p in (tmp_path / "moved").iterdir()) == ["latest", "step-00000002"]


@Attempt(
    "K16",
    "A checkpoint is swapped for a link after the question of `rm`",
    "the link was renamed, and not followed",
    "OSError; the link stays, and what it names",
)
def test_swap_of_the_checkpoint(run: Path, tmp_path: Path) -> None:
    removal.require_checkpoints([run / STEP])
    (run / STEP).rename(tmp_path / "moved")
    (run / STEP).symlink_to(tmp_path / "moved")
    with pytest.raises(OSError, match="link"):
        retention.remove_checkpoint(run / STEP)
    assert (tmp_path / "moved" / MANIFEST).is_file()
    assert (run / STEP).is_symlink()


@Attempt(
    "K17",
    "A disk is mounted inside the checkpoint that `rm` removes",
    "the files of that disk were removed",
    "CK113, a mount",
)
def test_rm_of_a_mount(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    point = str((run / STEP).resolve() / "m x").replace(" ", "\\040")
    (tmp_path / "mounts").write_text(f"30 1 0:26 / / rw - ext4 /dev/a rw\n31 30 0:27 / {point} rw - ext4 /dev/b rw\n")
    monkeypatch.setattr(removal, "MOUNTS", tmp_path / "mounts")
    assert "m x` is a mount" in call("checkpoint", "rm", run / STEP, "--yes")
    assert (run / STEP / MANIFEST).is_file()


@Attempt(
    "K18",
    "`checkpoint rm` of `/`, of a run directory, of its `checkpoints`, and of a path that ends in `..`",
    "CK113, not a checkpoint",
    "CK113, not a checkpoint",
)
def test_rm_of_what_is_no_checkpoint(run: Path) -> None:
    for path in ("/", run, run / "checkpoints", f"{run / STEP}/.."):
        assert "is not a checkpoint" in call("checkpoint", "rm", path, "--yes", "--force")
    assert (run / STEP / MANIFEST).is_file()


@Attempt(
    "K19",
    "`latest` names a checkpoint outside of the run",
    "CK115, and the newest of the run was shown",
    "CK115, and the newest of the run is shown",
)
def test_latest_outside(run: Path, tmp_path: Path) -> None:
    make(tmp_path / "other", 9)
    (run / "checkpoints/latest").write_text("../../other/step-00000009\n")
    assert "CK115" in call("checkpoint", "verify", run)
    assert "newest step-00000004" in call("checkpoint", "ls", run)


@Attempt(
    "K20",
    "`huggingface` of a checkpoint is a link to a folder of the reader, and its manifest lists nothing below it",
    "`verify` warned; `export` copied all files of the reader's folder into the export",
    "CK112, a link, which `export` and a resume refuse",
)
def test_link_to_a_folder(run: Path, tmp_path: Path) -> None:
    (run / STEP / "huggingface").rename(tmp_path / "private")
    (run / STEP / "huggingface").symlink_to(tmp_path / "private")
    edit_manifest(run / STEP, lambda body: body["files"].pop("huggingface/config.json"))
    said = call("checkpoint", "verify", run / STEP)
    assert "error[CK112]" in said
    assert "is a link" in said
