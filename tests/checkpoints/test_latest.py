# SPDX-License-Identifier: Apache-2.0
"""The newest complete checkpoint of a folder: one answer, as far as it is verified. Needs nothing; milliseconds."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.checkpoints.latest import (
    Verification,
    checkpoint_name,
    find_complete,
    find_latest,
    list_checkpoints,
    saved_step,
    step_in_name,
)
from tests.support.sample_checkpoints import make

LEVELS: tuple[Verification, ...] = ("exists", "manifest", "sizes", "bytes")


@pytest.mark.parametrize("verify", LEVELS)
def test_steps_are_compared_as_numbers(tmp_path: Path, verify: Verification) -> None:
    older, newer = make(tmp_path, 99_999_999), make(tmp_path, 100_000_000)
    assert (older.name, newer.name) == ("step-99999999", "step-100000000")
    assert find_latest(tmp_path, verify=verify).checkpoint == newer
    assert list_checkpoints(tmp_path) == [newer, older]
    assert step_in_name(newer.name) == 100_000_000


def test_each_level_finds_the_damage_that_it_looks_for(tmp_path: Path) -> None:
    """The newest has no manifest, the next an unreadable one, the next a file too short, the next another byte."""
    whole, changed, short, unreadable, torn = (make(tmp_path, step) for step in (2, 4, 6, 8, 10))
    (torn / "manifest.json").unlink()
    (unreadable / "manifest.json").write_text("{}")
    (short / "rank-00000.pt").write_bytes(b"")
    (changed / "rank-00000.pt").write_bytes((changed / "rank-00000.pt").read_bytes()[::-1])
    (tmp_path / "latest").write_text(f"{whole.name}\n")
    assert [find_latest(tmp_path, verify=level).checkpoint for level in LEVELS] == [unreadable, short, changed, whole]
    skipped = find_latest(tmp_path, verify="bytes").skipped
    assert [path for path, _ in skipped] == [torn, unreadable, short, changed]
    assert "sha256" in skipped[-1][1]


def test_a_manifest_of_another_step_is_not_complete(tmp_path: Path) -> None:
    older = make(tmp_path, 2)
    make(tmp_path, 4).rename(tmp_path / checkpoint_name(6))
    assert find_latest(tmp_path, verify="manifest").checkpoint == older
    assert find_latest(tmp_path, verify="exists").checkpoint == tmp_path / checkpoint_name(6)


def test_a_path_means_a_checkpoint_a_folder_of_them_or_a_run(tmp_path: Path) -> None:
    newest = make(tmp_path / "checkpoints", 4)
    incomplete = tmp_path / "checkpoints" / checkpoint_name(6)
    incomplete.mkdir()
    assert [find_complete(path) for path in (newest, newest.parent, tmp_path)] == [newest] * 3
    assert find_complete(incomplete) is None
    assert saved_step(newest) == 4
    assert saved_step(incomplete) is None


@pytest.mark.parametrize("text", [None, "", "step-00000099", "step-00000002\n", "../../etc", "\0"])
def test_a_stale_pointer_is_told_and_not_followed(tmp_path: Path, text: str | None) -> None:
    make(tmp_path, 2)
    later = make(tmp_path, 4)
    if text is None:
        (tmp_path / "latest").unlink()
    else:
        (tmp_path / "latest").write_text(text)
    latest, skipped = find_latest(tmp_path, verify="bytes")
    assert latest == later
    assert [p.name for p, _ in skipped] == ["latest"]
    assert "should name `step-00000004`" in skipped[0][1]


def test_what_a_killed_save_left_is_not_taken(tmp_path: Path) -> None:
    whole = make(tmp_path, 2)
    make(tmp_path, 4).rename(tmp_path / ".tmp-step-00000004")
    (tmp_path / "latest").write_text(whole.name)
    latest, skipped = find_latest(tmp_path, verify="bytes")
    assert latest == whole
    assert skipped == [(tmp_path / ".tmp-step-00000004", "a save that was not finished")]


def test_no_checkpoint_at_all(tmp_path: Path) -> None:
    assert find_latest(tmp_path / "none", verify="bytes") == (None, [])


def test_a_linked_checkpoint_is_exported_and_never_resumed(tmp_path: Path) -> None:
    """A checkpoint that was moved to another disk, with a link in its place."""
    elsewhere = make(tmp_path / "elsewhere", 100)
    folder = tmp_path / "run" / "checkpoints"
    folder.mkdir(parents=True)
    (folder / elsewhere.name).symlink_to(elsewhere)
    assert find_complete(tmp_path / "run") == folder / elsewhere.name
    assert find_latest(folder, verify="manifest").checkpoint is None
