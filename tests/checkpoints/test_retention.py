# SPDX-License-Identifier: Apache-2.0
"""Retention of checkpoints: the selection, and removals that leave no half of one under its name."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from harness.checkpoints import retention
from harness.checkpoints.evaluations import Evaluations
from harness.checkpoints.latest import find_latest, list_complete_manifests
from harness.checkpoints.retention import (
    folders_by_step,
    remove_checkpoint,
    remove_leftovers,
    remove_unfinished_saves,
    select_outdated,
    update_latest_pointer,
)
from tests.support.sample_checkpoints import make


def test_the_newest_the_round_ones_and_the_best_stay() -> None:
    steps = range(1, 11)
    assert select_outdated(steps, keep_last=None) == []
    assert select_outdated(steps, keep_last=2) == [1, 2, 3, 4, 5, 6, 7, 8]
    assert select_outdated(steps, keep_last=1, keep_every=4) == [1, 2, 3, 5, 6, 7, 9]
    assert select_outdated(steps, keep_last=2, best=3) == [1, 2, 4, 5, 6, 7, 8]


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.sets(st.integers(0, 200)), st.integers(1, 20), st.integers(1, 50))
def test_the_newest_never_goes(steps: set[int], last: int, every: int) -> None:
    gone = select_outdated(steps, keep_last=last, keep_every=every)
    kept = steps - set(gone)
    assert len(kept) >= min(last, len(steps))
    assert not steps or max(steps) in kept
    assert gone == sorted(gone)


def test_removing_is_atomic(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make(tmp_path, 2)
    later = make(tmp_path, 4)

    def killed(path: str, *, dir_fd: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(retention.shutil, "rmtree", killed)
    with pytest.raises(KeyboardInterrupt):
        remove_checkpoint(later)
    monkeypatch.undo()
    assert list(folders_by_step(tmp_path)) == [2]
    assert find_latest(tmp_path, verify="bytes")[0] == tmp_path / "step-00000002"
    assert [p.name[:7] for p in remove_leftovers(tmp_path)] == [".trash-"]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["latest", "step-00000002"]
    update_latest_pointer(tmp_path)
    assert (tmp_path / "latest").read_text() == "step-00000002\n"
    shutil.rmtree(tmp_path / "step-00000002")
    update_latest_pointer(tmp_path)
    assert not (tmp_path / "latest").exists()


def test_a_save_that_was_killed_leaves_nothing_and_complete_ones_stay(tmp_path: Path) -> None:
    complete = make(tmp_path, 10)
    incomplete = tmp_path / "step-00000020"
    incomplete.mkdir()
    torn, unnamed = tmp_path / ".tmp-step-00000030", make(tmp_path, 40).rename(tmp_path / ".tmp-step-00000040")
    (torn / "global_step30").mkdir(parents=True)
    (torn / "global_step30" / "shard.pt").write_bytes(b"x")
    trash = make(tmp_path, 50).rename(tmp_path / ".trash-step-00000050-17")
    assert remove_unfinished_saves(tmp_path) == [torn, trash]
    assert sorted(p for p in tmp_path.iterdir() if p.is_dir()) == sorted([complete, incomplete, unnamed])
    assert remove_unfinished_saves(tmp_path / "nowhere") == []


def test_a_link_is_no_checkpoint(tmp_path: Path) -> None:
    elsewhere = make(tmp_path / "elsewhere", 4)
    (tmp_path / "step-00000004").symlink_to(elsewhere)
    assert list_complete_manifests(tmp_path) == []
    assert folders_by_step(tmp_path) == {}


def test_evaluations_are_kept_beside_the_checkpoints(tmp_path: Path) -> None:
    known = Evaluations.read(tmp_path)
    assert known.to_manifest(4) == {"metric": "loss", "better": "lower", "own": None, "last": None, "best": None}
    for step, loss in ((2, 3.0), (4, 2.0), (6, 2.5)):
        known = known.with_evaluation(step, {"loss": loss, "tokens": 10})
    known.write(tmp_path)
    known = Evaluations.read(tmp_path)
    assert known.best_step([2, 4, 6]) == 4
    assert known.best_step([2, 6]) == 6
    assert known.best_step([3]) is None
    of_four = {"step": 4, "loss": 2.0, "tokens": 10}
    assert [known.to_manifest(4)[name] for name in ("own", "best", "last")] == [of_four] * 3
    of_seven = known.to_manifest(7)
    assert (of_seven["own"], of_seven["best"], of_seven["last"]["step"]) == (None, of_four, 6)
    assert known.with_evaluation(6, {"loss": 2.0}).best_step([4, 6]) == 4  # the first of equals
    known = known.with_evaluation(0, {"loss": float("nan")})
    known.write(tmp_path)
    known = Evaluations.read(tmp_path)
    assert known.best_step([0, 2, 6]) == 6
    assert known.to_manifest(0)["best"] is None


@pytest.mark.parametrize(
    "text", ['{"x": 1}', "", "[]", '{"4": "loss"}', '{"4": {"loss": "low"}}', '{"4": ' * 10000, "\0"]
)
def test_a_broken_file_has_no_evaluations(text: str, tmp_path: Path) -> None:
    (tmp_path / "evaluations.json").write_text(text)
    assert Evaluations.read(tmp_path) == Evaluations()
