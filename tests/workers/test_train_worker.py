# SPDX-License-Identifier: Apache-2.0
"""The variables that a rank sets before torch is imported: its number, and its share of the host's cores."""

from __future__ import annotations

import atexit
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace

import pytest

from harness.workers import train_worker


@pytest.mark.parametrize(
    ("told", "threads"),
    [
        ({"LOCAL_SIZE": "8"}, "2"),
        ({"OMPI_COMM_WORLD_LOCAL_SIZE": "4"}, "4"),
        ({"SLURM_NTASKS_PER_NODE": "2"}, "8"),
        ({"SLURM_NTASKS_PER_NODE": "2", "SLURM_CPUS_PER_TASK": "6"}, "6"),
        ({"LOCAL_SIZE": "32"}, "1"),
        ({}, "16"),
        ({"LOCAL_SIZE": "8", "OMP_NUM_THREADS": "5"}, "5"),
    ],
    ids=str,
)
def test_a_rank_takes_its_share_of_the_cores(
    monkeypatch: pytest.MonkeyPatch, told: Mapping[str, str], threads: str
) -> None:
    monkeypatch.setattr(os, "environ", dict(told))
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(16)))
    train_worker.set_thread_count()
    assert os.environ["OMP_NUM_THREADS"] == threads


def test_mpirun_and_srun_say_the_number_in_their_own_words(monkeypatch: pytest.MonkeyPatch) -> None:
    said = {"SLURM_PROCID": "5", "SLURM_NTASKS": "8", "SLURM_LOCALID": "1"}
    monkeypatch.setattr(os, "environ", dict(said))
    train_worker.set_rank_variables()
    assert [os.environ[name] for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK")] == ["5", "8", "1"]


def test_after_the_loop_the_interpreter_does_not_take_itself_apart(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The threads of gloo's groups are still there, and one of them could abort a rank that has succeeded."""

    at_end: list[str] = []

    def end(code: int) -> None:
        raise KeyboardInterrupt(code)

    worker = SimpleNamespace(WorkerArgs=lambda *values: values, run_rank=lambda _args, _rank: 0, exit_immediately=end)
    patches = SimpleNamespace(import_deepspeed=lambda _switches: None, read_switches=lambda _file: None)
    monkeypatch.setitem(sys.modules, "harness.runtime.worker", worker)
    monkeypatch.setitem(sys.modules, "harness.patches.no_mlflow", patches)
    monkeypatch.setattr(sys, "argv", ["train_worker.py", "--run", str(tmp_path)])
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(os, "environ", dict(os.environ))
    monkeypatch.setattr(atexit, "_run_exitfuncs", lambda: at_end.append("of a plug-in"))
    with pytest.raises(KeyboardInterrupt, match=r"^0$"):
        train_worker.main()
    assert at_end == ["of a plug-in"]
