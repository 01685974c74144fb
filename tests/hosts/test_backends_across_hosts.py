# SPDX-License-Identifier: Apache-2.0
"""Ranks on two hosts that pdsh does not start: mpirun does, or each host its own. Needs root, sshd, pdsh and the training
extra, for mpirun Open MPI (`apt install openmpi-bin`); two minutes.
"""

from __future__ import annotations

import json
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.boxes import NEEDS_ROOT, TheBox, made_box
from tests.support.host_launches import Launch, write_text
from tests.support.verdict_checks import assert_told_alike

STEPS = 4
PLAIN = "nothing,but.plain:characters"
APART = ("--no-ssh", "--run-id", "7")
pytestmark = [pytest.mark.hosts, *NEEDS_ROOT]


@pytest.fixture(scope="module")
def box() -> Iterator[TheBox]:
    with made_box(2, "o") as made:
        yield made


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return write_text(tmp_path_factory.mktemp("starters"))


@pytest.fixture(scope="module")
def by_pdsh(box, folder) -> list[float]:
    return Launch(box, folder, "pdsh", (1, 2), steps=STEPS).losses()


def hosts_of(run: Launch) -> list[str]:
    """By rank."""
    return [json.loads(f.read_text())["host"] for f in sorted((run.run_dir / "status").glob("rank-*.json"))]


def nobody_is_left(run: Launch) -> bool:
    end = time.monotonic() + 15
    while (run.left(1) or run.left(2)) and time.monotonic() < end:
        time.sleep(0.3)
    return not run.left(1) and not run.left(2)


@pytest.mark.skipif(not shutil.which("mpirun"), reason="needs mpirun")
def test_mpirun_starts_the_same_ranks(box, folder, by_pdsh):
    run = Launch(box, folder, "mpi", (1, 2), steps=STEPS, launch=", launcher: openmpi", odd=PLAIN)
    assert run.losses() == pytest.approx(by_pdsh, rel=1e-6)
    assert hosts_of(run) == ["box-1", "box-2"]
    assert {f.name for f in (run.run_dir / "logs").glob("rank-*.log")} == {"rank-00000.log", "rank-00001.log"}
    assert nobody_is_left(run)


@pytest.mark.skipif(not shutil.which("mpirun"), reason="needs mpirun")
def test_a_rank_of_mpiruns_that_is_killed_is_named(box, folder):
    run = Launch(box, folder, "mpi-killed", (1, 2), steps=10000, launch=", launcher: openmpi", odd=PLAIN)
    run.until_step(3)
    began = time.monotonic()
    box.on(2, "pkill", "-9", "-f", "[t]rain_worker.py --run")
    assert run.end(60) != 0
    assert time.monotonic() - began < 60
    assert "rank 1 (box-2)" in run.text.read_text()
    assert nobody_is_left(run)


def test_each_host_starts_its_own_ranks(box, folder, by_pdsh):
    first, second = (Launch(box, folder, "apart", (1, 2), *APART, steps=STEPS, on=host) for host in (1, 2))
    assert second.end() == 0, second.text.read_text()[-3000:]
    assert first.losses() == pytest.approx(by_pdsh, rel=1e-6)
    assert first.run_dir.name == "apart-7"
    assert hosts_of(first) == ["box-1", "box-2"]
    assert "completed" in second.text.read_text()
    assert (first.run_dir / "logs" / f"host-{box.address(2)}.log").is_file()
    assert nobody_is_left(first)


def test_a_rank_that_is_killed_on_another_host_ends_all(box, folder):
    first, second = (Launch(box, folder, "lost", (1, 2), *APART, steps=10000, on=host) for host in (2, 1))
    first.until_step(3)
    began = time.monotonic()
    box.on(2, "pkill", "-9", "-f", "[t]rain_worker.py --local_rank")
    codes = [first.end(90), second.end(90)]
    assert all(codes), codes
    assert time.monotonic() - began < 90
    for run in (first, second):  # the first host's supervisor, which writes the report, hears of it from the other one
        assert "failed on rank 1 (box-2)" in run.text.read_text()
    verdict = assert_told_alike(second.run_dir, second.text.read_text())
    assert (verdict.rank, verdict.host, verdict.signal) == (1, "box-2", "SIGKILL")
    assert nobody_is_left(first)


def test_a_stop_on_one_host_stops_all_of_them_saved(box, folder):
    runs = [Launch(box, folder, "stop", (1, 2), *APART, steps=10000, on=host) for host in (1, 2)]
    runs[0].until_step(3)
    box.on(2, "sh", "-c", "pkill -TERM -f '[h]arness launch.*stop.yaml'")
    codes = [run.end(90) for run in runs]
    assert codes[1] == 128 + signal.SIGTERM
    assert codes[0] != 0
    assert [(run.run_dir / "checkpoints").is_dir() for run in runs] == [True, True]
    assert "stopped" in runs[0].text.read_text()
    assert nobody_is_left(runs[0])


def test_a_host_with_another_spec_is_refused(box, folder):
    first = Launch(box, folder, "other", (1, 2), *APART, on=1)
    end = time.monotonic() + 60
    while not (first.run_dir / "launch.json").is_file() and time.monotonic() < end:
        time.sleep(0.2)
    other = Launch(box, folder, "other", (1, 2), *APART, "--set", "train.seed=5", on=2)
    assert other.end(90) == 4
    assert "EN013" in other.text.read_text()
    box.on(1, "sh", "-c", "pkill -TERM -f '[h]arness launch.*other.yaml'")
    assert first.end(90) == 128 + signal.SIGTERM
    assert nobody_is_left(first)
