# SPDX-License-Identifier: Apache-2.0
"""Runs on a disk that fails, or killed in the middle of a write: never completed without the checkpoint and the export
of the last step, and never ended by a file that is not one of these.

The faults are drawn from the calls that a run without a fault makes. A run takes three seconds; HARNESS_NIGHTLY=1
draws twenty kills, twenty faults and a slow disk (five minutes), else three of them run.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import re
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import pytest

from harness.checkpoints.latest import find_latest
from harness.launching.supervise.launch_runner import LaunchResult
from harness.verdicts import read_verdict
from tests.support.disk_faults import FOREVER, describe_fault
from tests.support.training.faulty_launches import STEPS, FaultyLaunches
from tests.support.training.forked_ranks import ForkedRanks

SEED = 52
LAST = f"step-{STEPS:08d}"
IS_NIGHTLY = bool(os.environ.get("HARNESS_NIGHTLY"))


class Call(NamedTuple):
    """The `nth` call of its process on a path below the run directory, whose random names are `*`."""

    op: str
    path: str
    nth: int

    @property
    def place(self) -> str:
        """`save`, `export`, or `side` for every other file."""
        if self.path.startswith("checkpoints") and "evaluations" not in self.path:
            return "save"
        return "export" if re.match(r"\.?export", self.path) else "side"


class Launches(NamedTuple):
    runner: FaultyLaunches
    calls: list[Call]
    first_save: int
    """The number of the call of rank 0 that opens its first file of a checkpoint."""
    export: str
    """The digest of the export of a run without a fault."""


@pytest.fixture(scope="module")
def launches(forked: ForkedRanks, tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Launches:
    folder = tmp_path_factory.mktemp("launches")
    runner = FaultyLaunches(forked, folder, tiny_model)
    log = folder / "calls"
    outcome = runner.run("none", describe_fault("*", "{run}/*", 1, "LOG", FOREVER) | {"DISK_FAULT_LOG": str(log)})
    assert (outcome.verdict.state, outcome.verdict.code) == ("completed", 0), outcome.verdict
    run_dir = outcome.plan.run_dir
    return Launches(runner, read_calls(log, run_dir), find_first_save(log), export_digest(run_dir))


def read_calls(log: Path, run_dir: Path) -> list[Call]:
    counts, calls = Counter[tuple[str, str, str]](), []
    for line in log.read_text().splitlines():
        pid, op, path = line.split(" ", 2)
        path = re.sub(r"\.\d+-[0-9a-f]{8}\.tmp$", ".*.tmp", str(Path(path).relative_to(run_dir)))
        counts[pid, op, path] += 1
        calls.append(Call(op, path, counts[pid, op, path]))
    return sorted(set(calls))


def find_first_save(log: Path) -> int:
    lines = log.read_text().splitlines()
    save = next(line for line in lines if line.endswith(".tmp-step-00000002/rank-00000.pt"))
    pid = save.split(" ")[0]
    return [line for line in lines if line.startswith(f"{pid} ")].index(save) + 1


def export_digest(run_dir: Path) -> str:
    return hashlib.sha256((run_dir / "export" / "model.safetensors").read_bytes()).hexdigest()


def draw(kind: str, number: int, calls: list[Call]) -> tuple[Call, str, float, str]:
    """The call, the action, for how long, and `checkpoint.on_save_error`."""
    if kind == "slow":
        return Call("*", "*", 1), "SLOW", FOREVER, "stop"
    chance = random.Random(f"{SEED} {kind} {number}")  # noqa: S311
    place = ("save", "export", "side")[number % 3]
    call = chance.choice([c for c in calls if c.place == place])
    errors = ["EIO", "ENOSPC", "EROFS", *(["SHORT"] if call.op == "write" else [])]
    action = "KILL" if kind == "kill" else chance.choice(errors)
    return call, action, chance.choice([0.0, 0.5, FOREVER]), chance.choice(["stop", "continue"])


CASES = [*((kind, number) for kind in ("kill", "fault") for number in range(20)), ("slow", 0)]


@pytest.mark.parametrize(("kind", "number"), CASES if IS_NIGHTLY else [("kill", 0), ("fault", 1), ("fault", 2)])
def test_a_run_is_never_completed_without_the_checkpoint_and_the_export_of_its_last_step(
    launches: Launches, kind: str, number: int
) -> None:
    call, action, seconds, on_save_error = draw(kind, number, launches.calls)
    fault = describe_fault(call.op, f"{{run}}/{call.path}", call.nth, action, seconds)
    outcome = launches.runner.run(f"{kind}-{number}", fault, on_save_error=on_save_error)
    check_end(launches, outcome)
    if kind != "kill" and call.place == "side":
        assert outcome.verdict.code == 0, (fault, outcome.verdict)


def check_end(launches: Launches, outcome: LaunchResult) -> None:
    """What holds for every end of a run."""
    verdict, run_dir = outcome.verdict, outcome.plan.run_dir
    assert read_verdict(run_dir) == verdict
    metrics = run_dir / "metrics.jsonl"
    lines = metrics.read_bytes().split(b"\n") if metrics.exists() else [b""]
    for line in lines[:-1]:  # a killed rank leaves half a line at most, the last
        json.loads(line)
    if verdict.code:
        assert verdict.state == "failed"
        assert verdict.reason
        assert "Traceback" not in verdict.reason
        assert not (run_dir / "export").exists() or export_digest(run_dir) == launches.export
        return
    newest = find_latest(run_dir / "checkpoints", verify="bytes").checkpoint
    assert newest is not None
    assert newest.name == LAST
    assert outcome.checkpoint == newest
    assert export_digest(run_dir) == launches.export


def test_a_last_save_that_fails_ends_the_run_without_an_export_of_older_weights(launches: Launches) -> None:
    fault = describe_fault("fsync", f"{{run}}/checkpoints/.tmp-{LAST}/*", 1, "EIO", FOREVER)
    outcome = launches.runner.run("lost", fault, on_save_error="continue")
    check_end(launches, outcome)
    assert outcome.verdict.code != 0
    assert f"the checkpoint of step {STEPS} could not be saved" in outcome.verdict.reason
    assert outcome.checkpoint is not None
    assert outcome.checkpoint.name == "step-00000002"


def test_a_last_save_that_fails_once_is_made_again(launches: Launches) -> None:
    fault = describe_fault("fsync", f"{{run}}/checkpoints/.tmp-{LAST}/*", 1, "EIO")
    outcome = launches.runner.run("again", fault, on_save_error="continue", save_at_end=False)
    check_end(launches, outcome)
    assert outcome.verdict.code == 0


def test_a_checkpoint_whose_folder_cannot_be_flushed_is_saved(
    launches: Launches, capsys: pytest.CaptureFixture[str]
) -> None:
    fault = describe_fault("fsync", "{run}/checkpoints", 1, "EIO", FOREVER)
    outcome = launches.runner.run("unflushed", fault, on_save_error="stop")
    check_end(launches, outcome)
    assert outcome.verdict.code == 0
    assert f"warning[CK110]: the checkpoint of step {STEPS} is saved" in capsys.readouterr().err


def test_a_disk_that_turns_read_only_ends_the_run_with_its_reason(launches: Launches) -> None:
    """For ranks: statuses, metrics, logs and saves. The supervisor gets the last status from a rank's output."""
    fault = describe_fault("*", "{run}/*", launches.first_save, "EROFS", FOREVER)
    outcome = launches.runner.run("read-only", fault, on_save_error="continue")
    check_end(launches, outcome)
    assert outcome.verdict.refused
    assert f"the checkpoint of step {STEPS} could not be saved" in outcome.verdict.reason
    assert "read-only file system" in outcome.verdict.reason
