# SPDX-License-Identifier: Apache-2.0
"""The acceptance on a GPU, rehearsed on the CPU: all checks pass at toy size, and each fails where its subject is broken.

HARNESS_NIGHTLY=1 breaks every check, else one of each pair that measures the same on more ranks or another tier.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks import gpu_acceptance
from benchmarks.gpu_checks.check import Check, Ending, Task
from benchmarks.gpu_checks.check_list import CHECKS, WIRE, find_check
from benchmarks.gpu_checks.check_runner import Outcome, Session, run_checks
from benchmarks.gpu_checks.checks import kills, op_builds
from benchmarks.gpu_checks.rank_processes import ForkedStart
from benchmarks.gpu_checks.simulated_figures import find_simulated, make_cases, simulate_spec
from tests.support.training.forked_ranks import ForkedRanks

FAULTS = "tests.support.training.acceptance_faults"
FAULTS_OF_CHECKS = (
    ("device", "leave_buffer_elsewhere", "buffers of rank 0 are on"),
    ("weights-cpu-1", "lose_gradient", "weights differ from plain DeepSpeed's"),
    ("weights-cpu-2", "keep_old_weights", "weights differ from plain DeepSpeed's"),
    ("weights-nvme-1", "lose_gradient", "weights differ from plain DeepSpeed's"),
    ("weights-nvme-2", "lose_moments", "weights differ from plain DeepSpeed's"),
    ("rows", "change_row", "are not those of their position"),
    ("gathers", "leave_live_parameters", "are gathered when they are needed already"),
    ("memory-leaf", "hold_more_memory", "are planned"),
    ("memory-plain", "keep_gathered", "elements, simulated are"),
    ("memory-nvme", "forget_reuse", "elements, simulated are"),
    ("attention", "join_documents", "off that of each document"),
    ("packing", "move_borders", "off attention of each document"),
    ("loss", "scale_loss", "gradients are"),
    ("syncs", "read_losses", "acceptance_faults.py"),
    ("watch", "double_gradients", "the watch says"),
    ("telemetry", "shorten_seconds", "of the time that passes"),
    ("activations", "change_offloaded", "without it"),
    ("recompute", "change_kept_attention", "losses of `attention` are"),
    ("saves", "damage_checkpoint", "is not whole"),
    ("saves", "copy_a_part", "other tensors than one in line"),
    ("kills", "resume_other_weights", "other weights"),
    ("copies", "stop_clock", "is not the rate of a bus"),
    ("qlora", "forget_scales", "bytes of frozen weights"),
    ("host-rates", "slow_disk", "disk read"),
    ("real-size", "slow_harness", "times as long as bare DeepSpeed's"),
)
"""Of each check whose processes are ranks: what is broken, and what it says."""
BUILDERS = {
    "ops": ("pass", "cpu_adam is not there"),
    "ops-2": ("sys.exit('no nvcc' if sys.argv[1] == 'async_io' else 0)", "async_io cannot be compiled: no nvcc"),
    "ops-3": ("time.sleep(60 * (sys.argv[1] == 'fused_adam'))", "fused_adam cannot be compiled: not ready after 2 s"),
}
"""Of each check that compiles: the program that takes the compiler's place, and what it says."""
IS_NIGHTLY = bool(os.environ.get("HARNESS_NIGHTLY"))
NIGHTLY_CHECKS = ("weights-cpu-2", "weights-nvme-1", "memory-plain", "memory-nvme")
SUBJECTS = {check.module: check for check in reversed(CHECKS) if check.module != "op_builds"}
"""A check of each subject whose processes are ranks."""
DRIVEN = ("gather_memory", "kills", "real_size")
"""Subjects that start their ranks by themselves; what others start is in one place (`check_process.py`)."""


@pytest.fixture(scope="module")
def start(forked: ForkedRanks) -> ForkedStart:
    return ForkedStart(forked)


@pytest.fixture(scope="module")
def rehearsed(start: ForkedStart, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Exit code, and every line by its check, of all three parts."""
    folder = tmp_path_factory.mktemp("acceptance")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gpu_acceptance, "ForkedStart", lambda: start)
        patch.setattr(start, "close", lambda: None)
        code = gpu_acceptance.main(["--rehearse", "--shared", "--output", str(folder)])
    lines = [json.loads(line) for file in sorted(folder.glob("*.jsonl")) for line in file.read_text().splitlines()]
    return {"code": code, "folder": folder, "lines": {line["check"]: line for line in lines}}


def test_all_checks_pass(rehearsed: dict[str, Any]) -> None:
    states = {name: line["state"] for name, line in rehearsed["lines"].items()}
    whys = [line["figures"]["why"] for line in rehearsed["lines"].values() if "why" in line["figures"]]
    assert states == dict.fromkeys(["facts", *(check.name for check in CHECKS)], "PASS"), "\n".join(whys)
    assert rehearsed["code"] == 0


def test_four_minutes_of_cpu_are_enough(rehearsed: dict[str, Any]) -> None:
    """CI has two cores. Seen: 20 s of ranks, without the process that forks them and the plans; 72 s on a busy machine."""
    figures = {name: line["figures"] for name, line in rehearsed["lines"].items()}
    assert sum(check.ranks * figures[check.name].get("cpu_seconds", 0.0) for check in CHECKS) < 240


def test_at_most_eight_small_files_are_written(rehearsed: dict[str, Any]) -> None:
    files = list(rehearsed["folder"].iterdir())
    assert len(files) <= 8
    assert sum(file.stat().st_size for file in files) < 1 << 20


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.name)
def test_what_a_cpu_cannot_show_is_said(check: Check, rehearsed: dict[str, Any]) -> None:
    assert rehearsed["lines"][check.name]["figures"].get("cannot_show", "") == check.cannot_show


def run_broken(name: str, fault: str, start: Callable[..., Any]) -> Outcome:
    """The outcome of a rehearsed check whose ranks have a fault."""
    session = Session(start, True, time.monotonic() + 60, faults=[f"{name}={FAULTS}:{fault}"])
    return next(run_checks([find_check(name)], session))


@pytest.mark.parametrize(
    ("name", "fault", "why"), [row for row in FAULTS_OF_CHECKS if IS_NIGHTLY or row[0] not in NIGHTLY_CHECKS]
)
def test_a_broken_subject_fails_its_check(
    name: str, fault: str, why: str, start: ForkedStart, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kills, "MODES", ("sigterm",))  # one end of a run is enough here
    outcome = run_broken(name, fault, start)
    assert outcome.state == "FAIL"
    assert why in outcome.why, outcome.why


@pytest.mark.parametrize(
    "check",
    [check for name, check in SUBJECTS.items() if IS_NIGHTLY or name in ("device_use", *DRIVEN)],
    ids=lambda check: check.name,
)
def test_a_rank_that_sees_no_gpu_fails_its_check(check: Check, start: ForkedStart) -> None:
    """Without `--rehearse` nothing passes on a CPU."""
    session = Session(start, False, time.monotonic() + 600)
    outcome = next(run_checks([replace(check, limit=20, host_gib=0)], session))
    assert outcome.state == "FAIL"
    assert "this rank computes on `cpu`" in outcome.why


def test_two_ranks_reach_each_other(start: ForkedStart, tmp_path: Path) -> None:
    ending = start(Task("wire", str(tmp_path), True, 2))
    assert list(ending.codes) == [0, 0]
    assert WIRE.judge(ending.figures, rehearse=True) == []


def start_no_rank(_: Task) -> Ending:
    raise AssertionError("a check that compiles starts no rank")


def test_each_check_has_a_fault() -> None:
    assert {name for name, _, _ in FAULTS_OF_CHECKS} | set(BUILDERS) == {check.name for check in CHECKS}


@pytest.mark.parametrize("name", BUILDERS)
def test_an_op_that_is_not_compiled_fails(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    program, why = BUILDERS[name]
    (tmp_path / "builder.py").write_text(f"import sys, time\n{program}\n")
    monkeypatch.setattr(op_builds, "BUILDER", tmp_path / "builder.py")
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path))
    session = Session(start_no_rank, False, time.monotonic() + 600)
    outcome = next(run_checks([replace(find_check(name), limit=2.0)], session))
    assert outcome.state == "FAIL"
    assert why in outcome.why


def test_a_rehearsal_compiles_no_op(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path))
    outcome = next(run_checks([find_check("ops")], Session(start_no_rank, True, time.monotonic() + 60)))
    assert outcome.state == "FAIL"
    assert "cpu_adam is not there" in outcome.why


def test_simulated_figures_are_those_of_a_simulation(tmp_path: Path) -> None:
    """One of them, simulated again: what the release of DeepSpeed and the harness's device say today."""
    spec, ranks = next((s, r) for name, toy, s, r in make_cases(tmp_path) if toy and name == "memory-plain")
    written = find_simulated(spec, ranks)
    assert written is not None
    today = simulate_spec(tmp_path / "spec.yaml", spec, ranks)
    assert {**written, "versions": ""} == {**written, **today, "versions": ""}
