# SPDX-License-Identifier: Apache-2.0
"""A run swaps to a folder of its own, which goes when the run ends, and when it was killed."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from harness.locks import Lock
from harness.nvme_dirs import (
    LOCK,
    PREFIX,
    clear_swap_dir,
    is_swap_dir,
    remove_stale_swap_dirs,
    run_swap_dir,
    swap_dirs_of,
    with_run_swap_dirs,
)

CONFIG = {
    "zero_optimization": {
        "stage": 3,
        "offload_optimizer": {"device": "nvme", "nvme_path": "/nvme"},
        "offload_param": {"device": "cpu", "nvme_path": "/unused"},
    }
}


def make(parent: Path, name: str, *, age: float = 3600.0) -> Path:
    """A folder as a run leaves it: a lock that nobody holds, and a swapped tensor."""
    folder = parent / f"{PREFIX}{name}"
    (folder / "zero_stage_3" / "optimizer" / "rank0").mkdir(parents=True)
    (folder / "zero_stage_3" / "optimizer" / "rank0" / "1.tensor.swp").write_bytes(b"x" * 100)
    (folder / LOCK).write_text("")
    os.utime(folder, (time.time() - age,) * 2)
    return folder


def test_each_run_swaps_to_its_own_folder() -> None:
    one, other = (with_run_swap_dirs(CONFIG, Path(f"/runs/{name}")) for name in ("a-1", "a-2"))
    assert len({str(swap_dirs_of(config)) for config in (one, other)}) == 2
    assert swap_dirs_of(one) == [Path(run_swap_dir("/nvme", Path("/runs/a-1")))]
    assert swap_dirs_of(one)[0].parent == Path("/nvme")
    assert is_swap_dir(swap_dirs_of(one)[0])
    assert one["zero_optimization"]["offload_param"]["nvme_path"] == "/unused"
    assert CONFIG["zero_optimization"]["offload_optimizer"]["nvme_path"] == "/nvme"  # type: ignore[index]
    assert with_run_swap_dirs(CONFIG, Path("/runs/a-1")) == one, "a run that starts again finds its folder"


@pytest.mark.parametrize("config", [{}, {"zero_optimization": {"stage": 2, "offload_optimizer": {"device": "nvme"}}}])
def test_what_is_not_swapped_is_left_as_it_is(config: dict[str, object]) -> None:
    assert with_run_swap_dirs(config, Path("/runs/a")) == config


def test_what_a_killed_run_left_is_removed(tmp_path: Path) -> None:
    left, other = make(tmp_path, "left"), tmp_path / "not-ours"
    other.mkdir()
    assert [(gone.folder, gone.size) for gone in remove_stale_swap_dirs(tmp_path)] == [(left, 100)]
    assert [p.name for p in tmp_path.iterdir()] == ["not-ours"]


def test_what_a_living_run_holds_stays(tmp_path: Path) -> None:
    folder = make(tmp_path, "held")
    (folder / LOCK).unlink()
    lock = Lock.acquire(folder / LOCK, "a run")
    assert remove_stale_swap_dirs(tmp_path) == []
    assert (folder / "zero_stage_3").exists()
    lock.release()
    os.utime(folder, (0, 0))
    assert len(remove_stale_swap_dirs(tmp_path)) == 1


def test_a_folder_that_was_just_made_stays(tmp_path: Path) -> None:
    """Between making it and taking its lock."""
    (tmp_path / f"{PREFIX}new").mkdir()
    assert remove_stale_swap_dirs(tmp_path) == []


def test_files_of_others_inside_keep_the_folder(tmp_path: Path) -> None:
    folder = make(tmp_path, "shared")
    (folder / "precious").write_text("")
    assert remove_stale_swap_dirs(tmp_path) == []
    assert [p.name for p in folder.iterdir()] == ["precious"]


def test_only_folders_of_the_harness_are_emptied(tmp_path: Path) -> None:
    (tmp_path / "zero_stage_3").mkdir()
    clear_swap_dir(tmp_path)
    assert (tmp_path / "zero_stage_3").exists()
