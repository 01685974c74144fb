# SPDX-License-Identifier: Apache-2.0
"""The acceptance on a GPU, rehearsed on the CPU: all checks pass at toy size, and each fails where its subject is broken."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks import gpu_acceptance
from benchmarks.gpu_checks.check import Check, Task
from benchmarks.gpu_checks.check_list import CHECKS, WIRE, find_check
from benchmarks.gpu_checks.check_runner import Outcome, Session, run_checks
from benchmarks.gpu_checks.checks import kills
from benchmarks.gpu_checks.rank_processes import ForkedStart
from tests.support.training.forked_ranks import ForkedRanks

FAULTS = "tests.support.training.acceptance_faults"
SUBJECTS = {check.module: check for check in reversed(CHECKS) if check.module != "op_builds"}
"""A check of each subject whose processes are ranks."""


@pytest.fixture(scope="module")
def start(forked: ForkedRanks) -> ForkedStart:
    return ForkedStart(forked)


@pytest.fixture(scope="module")
def rehearsed(start: ForkedStart, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Exit code, seconds, and every line by its check, of all three parts."""
    folder = tmp_path_factory.mktemp("acceptance")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gpu_acceptance, "ForkedStart", lambda: start)
        patch.setattr(start, "close", lambda: None)
        began = time.monotonic()
        code = gpu_acceptance.main(["--rehearse", "--shared", "--output", str(folder)])
    lines = [json.loads(line) for file in sorted(folder.glob("*.jsonl")) for line in file.read_text().splitlines()]
    seconds = time.monotonic() - began
    return {"code": code, "seconds": seconds, "folder": folder, "lines": {line["check"]: line for line in lines}}


def test_all_checks_pass(rehearsed: dict[str, Any]) -> None:
    states = {name: line["state"] for name, line in rehearsed["lines"].items()}
    whys = [line["figures"]["why"] for line in rehearsed["lines"].values() if "why" in line["figures"]]
    assert states == dict.fromkeys(["facts", *(check.name for check in CHECKS)], "PASS"), "\n".join(whys)
    assert rehearsed["code"] == 0


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
    ("name", "fault", "why"),
    [
        ("device", "leave_buffer_elsewhere", "buffers of rank 0 are on"),
        ("weights-cpu-1", "lose_gradient", "weights differ from plain DeepSpeed's"),
        ("weights-nvme-1", "lose_gradient", "weights differ from plain DeepSpeed's"),
        ("rows", "change_row", "are not those of their position"),
        ("gathers", "leave_live_parameters", "are gathered when they are needed already"),
        ("memory-leaf", "hold_more_memory", "are planned"),
        ("attention", "join_documents", "off that of each document"),
        ("loss", "scale_loss", "gradients are"),
        ("syncs", "read_losses", "acceptance_faults.py"),
        ("telemetry", "shorten_seconds", "of the time that passes"),
        ("activations", "change_offloaded", "without it"),
        ("saves", "damage_checkpoint", "is not whole"),
        ("kills", "resume_other_weights", "resumed to other weights"),
        ("copies", "stop_clock", "is not the rate of a bus"),
        ("host-rates", "slow_disk", "disk read"),
        ("real-size", "slow_harness", "times as long as bare DeepSpeed's"),
    ],
)
def test_a_broken_subject_fails_its_check(
    name: str, fault: str, why: str, start: ForkedStart, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kills, "MODES", ("sigterm",))  # one end of a run is enough here
    outcome = run_broken(name, fault, start)
    assert outcome.state == "FAIL"
    assert why in outcome.why, outcome.why


@pytest.mark.parametrize("check", SUBJECTS.values(), ids=lambda check: check.name)
def test_a_rank_that_sees_no_gpu_fails_every_check(check: Check, start: ForkedStart) -> None:
    """Without `--rehearse` nothing passes on a CPU."""
    session = Session(start, False, time.monotonic() + 600)
    outcome = next(run_checks([replace(check, limit=20)], session))
    assert outcome.state == "FAIL"
    assert "this rank computes on `cpu`" in outcome.why


def test_two_ranks_reach_each_other(start: ForkedStart, tmp_path: Path) -> None:
    ending = start(Task("wire", str(tmp_path), True, 2))
    assert list(ending.codes) == [0, 0]
    assert WIRE.judge(ending.figures, rehearse=True) == []


def test_an_op_that_is_not_compiled_fails(start: ForkedStart, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path))
    outcome = next(run_checks([find_check("ops")], Session(start, True, time.monotonic() + 60)))
    assert outcome.state == "FAIL"
    assert "cpu_adam is not there" in outcome.why
