# SPDX-License-Identifier: Apache-2.0
"""The folder in which an export is written: nobody's own folder goes for it, and a killed export leaves none."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from harness.scratch_folder import scratch_folder

KILLED = """
import os, signal, sys
from pathlib import Path
from harness.scratch_folder import scratch_folder
with scratch_folder(Path(sys.argv[1])) as folder:
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(b"half")
    print("ready", flush=True)
    sys.stdin.read() or os.kill(os.getpid(), signal.SIGKILL)
"""


def export_to(out: Path) -> None:
    with scratch_folder(out) as folder:
        folder.mkdir()
        (folder / "config.json").write_text("{}")
        folder.replace(out)


def test_folders_and_links_of_the_user_stay(tmp_path: Path) -> None:
    own, elsewhere = tmp_path / ".model.tmp", tmp_path / "elsewhere"
    private = tmp_path / ".model.mine.tmp"
    for folder in (own, elsewhere, private):
        folder.mkdir(mode=0o700)
        (folder / "notes").write_text("precious")
    (tmp_path / ".model.link.tmp").symlink_to(elsewhere)
    (tmp_path / ".model.killed00.tmp").mkdir(mode=0o700)  # before it had its lock, and long ago
    os.utime(tmp_path / ".model.killed00.tmp", (0, 0))
    export_to(tmp_path / "model")
    assert [folder.joinpath("notes").read_text() for folder in (own, elsewhere, private)] == ["precious"] * 3
    assert (tmp_path / "model" / "config.json").exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(
        [".model.tmp", ".model.mine.tmp", ".model.link.tmp", "elsewhere", "model"]
    )


def test_nobody_else_enters_it_and_all_of_it_goes_with_an_error(tmp_path: Path) -> None:
    def interrupted() -> None:
        with scratch_folder(tmp_path / "model") as folder:
            assert folder.parent.stat().st_mode & 0o077 == 0
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_export_left_goes_with_the_next_and_a_living_one_stays(tmp_path: Path) -> None:
    out = tmp_path / "model"
    command = [sys.executable, "-c", KILLED, str(out)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        export_to(out)  # at the same time
        assert len(list(tmp_path.glob(".model.*.tmp"))) == 1
        child.stdin.close()
        assert child.wait(30) == -signal.SIGKILL
    assert (next(tmp_path.glob(".model.*.tmp")) / "content" / "model.safetensors").exists()
    export_to(tmp_path / "model-2")
    assert len(list(tmp_path.glob(".model.*.tmp"))) == 1  # of another output
    with scratch_folder(out) as folder:
        assert [path.name for path in tmp_path.glob(".model.*.tmp")] == [folder.parent.name]


def test_the_later_of_two_exports_does_not_replace_the_first(tmp_path: Path) -> None:
    out = tmp_path / "model"
    with scratch_folder(out) as folder:
        folder.mkdir()
        export_to(out)
        with pytest.raises(OSError, match="not empty"):
            folder.replace(out)
    assert (out / "config.json").exists()
