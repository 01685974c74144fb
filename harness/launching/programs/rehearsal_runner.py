# SPDX-License-Identifier: Apache-2.0
"""Runs a rehearsal: makes its files, trains, kills, resumes and exports, each by the command that a user would type.

`harness.rehearsal` decides the sizes. No process of its own is left when it returns.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from harness.findings import Finding, Fix
from harness.interpreter import python_command
from harness.launching.process.child_process import spawn_child, terminate_child
from harness.launching.process.processes import find_run_processes
from harness.rehearsal.extrapolation import RehearsalMeasurements
from harness.run_records.run_record import RunRecord, read_run_record

_TIMEOUT_SECONDS = 1800.0
Log = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class RehearsalStage:
    """One command of the rehearsal, or the creation of its files."""

    name: str
    seconds: float
    code: int
    what: str


@dataclass(slots=True)
class RehearsalRun:
    """The state of a rehearsal. `findings` say why it ended early."""

    folder: Path
    scripts: Path
    log: Log
    launch_options: Sequence[str] = ()
    """Options of `harness launch`, beyond those that every rehearsal needs."""
    stages: list[RehearsalStage] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    killed_record: RunRecord | None = None
    resumed_record: RunRecord | None = None
    export_peak_bytes: int | None = None

    @property
    def measurements(self) -> RehearsalMeasurements:
        """The lines to compare with the plan."""
        records = [record for record in (self.killed_record, self.resumed_record) if record is not None]
        lines = {kind: [line for record in records for line in record.lines_of(kind)] for kind in ("memory", "save")}
        seconds = [value for record in records for value in record.values("seconds")]
        return RehearsalMeasurements(lines["memory"], seconds, lines["save"], self.export_peak_bytes)


def run_rehearsal(
    folder: Path, scripts: Path, config: Mapping[str, Any], save_at: int, log: Log, launch_options: Sequence[str] = ()
) -> RehearsalRun:
    """Run all phases in order, up to the first that fails. `spec.yaml` must be in `folder`; `launch_options` are more
    options of `harness launch`. Raises nothing.
    """
    rehearsal = RehearsalRun(folder, scripts, log, launch_options)
    phases: tuple[Callable[[], None], ...] = (
        partial(_make_files, rehearsal, config),
        partial(_train_and_kill, rehearsal, save_at),
        partial(_resume_training, rehearsal, save_at),
        partial(_export_model, rehearsal),
    )
    for phase in phases:
        phase()
        if rehearsal.findings:
            break
    return rehearsal


def _make_files(rehearsal: RehearsalRun, config: Mapping[str, Any]) -> None:
    file = rehearsal.folder / "orders.json"
    file.write_text(json.dumps(config, indent=2), encoding="utf-8")
    command = python_command(str(rehearsal.scripts / "synthetic_files_worker.py"), "--orders", str(file))
    code, seconds, _ = _run_command(rehearsal, command, "files")
    _add_stage(
        rehearsal, RehearsalStage("files", seconds, code, "a sharded model folder of random weights, and records")
    )
    if code:
        _add_failure(rehearsal, "files", code, "the model folder could not be written")


def _train_and_kill(rehearsal: RehearsalRun, save_at: int) -> None:
    """Train, and kill a rank once a checkpoint is complete and the next step has begun."""
    start, rank, code = time.monotonic(), None, 1
    with (rehearsal.folder / "train.log").open("ab") as log:
        child = spawn_child(_launch_command(rehearsal), rehearsal.folder, log)
        try:
            rank = _wait_for_checkpoint(rehearsal, child, save_at)
            if rank is not None:
                os.kill(rank, signal.SIGKILL)
            code = child.wait(_TIMEOUT_SECONDS)
        except (subprocess.TimeoutExpired, ProcessLookupError):
            rank = None
        finally:
            terminate_child(child)
    rehearsal.killed_record = _read_newest_record(rehearsal)
    seconds = time.monotonic() - start
    if rank is None:
        code = code or 1
        _add_stage(rehearsal, RehearsalStage("train", seconds, code, "load, train, save"))
        _add_failure(rehearsal, "train", code, "it ended before it could be killed")
        return
    _add_stage(rehearsal, RehearsalStage("train", seconds, 0, f"load, train, save; a rank killed after step {save_at}"))
    if code == 0:
        _add_failure(rehearsal, "train", 1, "a rank was killed, but the launch reports success")


def _resume_training(rehearsal: RehearsalRun, save_at: int) -> None:
    code, seconds, _ = _run_command(rehearsal, [*_launch_command(rehearsal), "--resume", "auto"], "resume")
    record = rehearsal.resumed_record = _read_newest_record(rehearsal)
    first_step = int(record.header.get("start_step", 0)) if record else 0
    _add_stage(
        rehearsal, RehearsalStage("resume", seconds, code, f"resumed from step {first_step}, trained to the end")
    )
    if code:
        _add_failure(rehearsal, "resume", code, "it did not train to the end")
    elif first_step < save_at:
        _add_failure(
            rehearsal, "resume", 1, f"it resumed from step {first_step}, but the checkpoint is of step {save_at}"
        )


def _export_model(rehearsal: RehearsalRun) -> None:
    run_dir = rehearsal.resumed_record.folder if rehearsal.resumed_record else rehearsal.folder / "runs" / "latest"
    # the rehearsal's own checkpoint: the spec has said whether the model's code runs
    options = (str(run_dir), str(rehearsal.folder / "export"), "--allow-local-code")
    command = python_command("-m", "harness", "export", *options)
    code, seconds, peak = _run_command(rehearsal, command, "export")
    rehearsal.export_peak_bytes = peak or None
    size = sum(path.stat().st_size for path in (rehearsal.folder / "export").glob("*.safetensors"))
    _add_stage(rehearsal, RehearsalStage("export", seconds, code, f"{size:,} bytes of weights for transformers"))
    if code or not size:
        _add_failure(rehearsal, "export", code or 1, "nothing was exported")


def _launch_command(rehearsal: RehearsalRun) -> list[str]:
    command = python_command("-m", "harness", "launch", "spec.yaml", "--progress", "plain", "--format", "json")
    return [*command, *rehearsal.launch_options]


def _run_command(rehearsal: RehearsalRun, command: Sequence[str], name: str) -> tuple[int, float, int]:
    """Exit code, seconds, and the largest resident set of the process and of the children that it waited for."""
    start = time.monotonic()
    with (rehearsal.folder / f"{name}.log").open("ab") as log:
        child = spawn_child(command, rehearsal.folder, log)
        try:
            _, status, usage = os.wait4(child.pid, 0)
            child.returncode = os.waitstatus_to_exitcode(status)
        finally:
            terminate_child(child)
    code = child.returncode
    return (128 - code if code < 0 else code), time.monotonic() - start, usage.ru_maxrss * 1024


def _wait_for_checkpoint(rehearsal: RehearsalRun, child: subprocess.Popen[bytes], step: int) -> int | None:
    """The pid of a rank once the run has a complete checkpoint of this step; None when the launch ends before."""
    until = time.monotonic() + _TIMEOUT_SECONDS
    while child.poll() is None and time.monotonic() < until:
        runs = find_runs_with(rehearsal.folder, f"checkpoints/step-{step:08d}/manifest.json")
        if runs:
            return _find_last_rank_pid(runs[-1])
        time.sleep(0.02)
    return None


def find_runs_with(folder: Path, name: str) -> list[Path]:
    """Run directories that have this file, the one whose file is newest last; without `latest`, which is a link to one
    of them: the ranks' environment has the directory's own name.
    """
    runs = [run for run in (folder / "runs").glob("*") if not run.is_symlink() and (run / name).is_file()]
    return sorted(runs, key=lambda run: (run / name).stat().st_mtime)


def _find_last_rank_pid(run_dir: Path) -> int | None:
    """The process of the last rank, which is not the first rank where there are several."""
    ranks = {}
    for process in find_run_processes(run_dir, session=-1):
        try:
            command = Path(f"/proc/{process.pid}/cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        local = [part for part in command if part.startswith(b"--local_rank=")]  # the launcher gives it to ranks alone
        if local and any(part.endswith(b"train_worker.py") for part in command):
            ranks[int(local[0].partition(b"=")[2])] = process.pid
    return ranks[max(ranks)] if ranks else None


def _read_newest_record(rehearsal: RehearsalRun) -> RunRecord | None:
    runs = find_runs_with(rehearsal.folder, "launch.json")
    return read_run_record(runs[-1]) if runs else None


def _add_stage(rehearsal: RehearsalRun, stage: RehearsalStage) -> None:
    rehearsal.stages.append(stage)
    rehearsal.log(f"{stage.name}: {stage.what} ({stage.seconds:.0f} s, code {stage.code})")


def _add_failure(rehearsal: RehearsalRun, name: str, code: int, why: str) -> None:
    log = rehearsal.folder / f"{name}.log"
    try:
        tail = [line for line in log.read_text(errors="replace").splitlines() if line.strip()][-8:]
    except OSError:
        tail = []
    fix = Fix(f"read `{log}`; `harness explain --log {log}` names the cause")
    message = f"the rehearsal ended in the phase `{name}` with code {code}: {why}"
    rehearsal.findings.append(Finding("MM012", "error", message, notes=tuple(line[:200] for line in tail), fix=fix))
