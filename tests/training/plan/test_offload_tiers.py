# SPDX-License-Identifier: Apache-2.0
"""Offload in part, swapping that reads ahead, masters in bf16; swap files that go; and the search for fast I/O settings.

Two forked ranks, all cases in one job, and one program that measures a disk: about 35 s.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import tests.support.training.parity_cases as table
from harness.locks import Lock
from harness.nvme_dirs import run_swap_dir
from harness.runtime.aio_sweep import pick_best, sweep_settings
from harness.runtime.run_lock import SWAP_LOCK_FILE, release_locks
from harness.spec.spec_loader import load_spec
from tests.support.training.forked_ranks import ForkedRanks
from tests.support.training.parity_runs import Result, run, start_forked
from tests.support.training.runtime_helpers import rank_environment


@pytest.fixture(scope="module")
def results(forked: ForkedRanks, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Result]:
    """Of each case by its name."""
    return {r.case.name: r for r in run(table.OFFLOAD, tmp_path_factory.mktemp("tiers"), start_forked(forked))}


@pytest.mark.parametrize("case", table.OFFLOAD, ids=lambda c: c.name)
def test_losses_are_those_of_one_plain_process(case: table.Case, results: dict[str, Result]) -> None:
    result = results[case.name]
    assert result.error is None
    assert result.difference <= table.bound(case)
    assert result.swapped > 1 << 20 or not case.tier.startswith("nvme")


def test_what_a_run_swapped_goes_when_it_ends(tmp_path: Path) -> None:
    folder = Path(run_swap_dir(str(tmp_path), Path("/runs/a")))
    (folder / "zero_stage_3" / "optimizer").mkdir(parents=True)
    release_locks([Lock.acquire(folder / SWAP_LOCK_FILE, "a run")])
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_somebody_named_is_not_emptied(tmp_path: Path) -> None:
    """A run directory that was made by hand has the user's own `nvme_path` in its DeepSpeed JSON."""
    (tmp_path / "zero_stage_3").mkdir()
    release_locks([Lock.acquire(tmp_path / SWAP_LOCK_FILE, "a run")])
    assert [p.name for p in tmp_path.iterdir()] == ["zero_stage_3"]


def trial(read: float, write: float, **more: Any) -> dict[str, Any]:
    return {"read": read, "write": write, **more}


def test_the_best_setting_reads_and_writes_in_the_shortest_time() -> None:
    found = [trial(1e9, 1e9, n=1), trial(4e9, 1.5e9, n=2), trial(3e9, 2.9e9, n=3)]
    assert pick_best(found)["n"] == 3


def test_of_settings_that_are_about_as_fast_the_cheaper_wins() -> None:
    assert pick_best([trial(1.99e9, 2e9, n=1), trial(2e9, 2e9, n=2)])["n"] == 1


def test_settings_are_deepspeeds_own_and_the_cheap_ones_come_first() -> None:
    found = sweep_settings()
    assert len(found) == 64
    assert [found[0]["intra_op_parallelism"], found[-1]["intra_op_parallelism"]] == [1, 8]
    assert found[0]["block_size"] == 1 << 20


def doctor(*options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "harness", "doctor", *options]
    return subprocess.run(command, text=True, capture_output=True, check=False, timeout=300, env=rank_environment())


def test_the_disk_at_hand_is_measured_and_the_spec_takes_the_answer(tmp_path: Path) -> None:
    done = doctor("--tune-nvme", str(tmp_path), "--seconds", "1")
    assert done.returncode == 0, done.stderr
    assert "GB/s" in done.stderr
    assert list(tmp_path.iterdir()) == [], "nothing is left on the disk"
    spec = tmp_path / "spec.yaml"
    spec.write_text("name: a\nmodel: {name_or_path: gpt2}\nzero: {stage: 1}\n" + done.stdout)
    assert not [f for f in load_spec(str(spec)).findings if f.severity == "error"]


def test_a_folder_that_is_not_there_is_refused(tmp_path: Path) -> None:
    done = doctor("--tune-nvme", str(tmp_path / "no"))
    assert done.returncode == 2
    assert "is not a folder" in done.stderr
