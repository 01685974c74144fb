# SPDX-License-Identifier: Apache-2.0
"""Runs one candidate of `harness tune` by the command that a user would type, and monitors its steps.

`harness.tuning` decides which candidates run and what their steps mean.
"""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from harness.diagnosis.run_diagnosis import diagnose_run
from harness.errors import UserError
from harness.interpreter import python_command
from harness.launching.process.child_process import spawn_child, terminate_child
from harness.plan.search.spec_changes import SpecChanges
from harness.run.resolved_run import ResolvedRun
from harness.run_records.run_files import json_of, read_metrics
from harness.run_records.run_record import read_run_record
from harness.spec.parse.source import join_key
from harness.tuning.candidates import Candidate
from harness.tuning.trials import Trial, TrialState, is_far_behind, measurements_of, state_of_launch, step_seconds

_POLL_SECONDS = 0.25
_TRIAL_OVERRIDES: dict[str, Any] = {
    "train.num_train_epochs": None,
    "checkpoint.save_steps": None,
    "checkpoint.save_at_end": False,
    "checkpoint.keep_best": False,
    "eval.eval_steps": None,
    "eval.eval_on_start": False,
    "eval.early_stopping_patience": None,
    "eval.max_batches": 1,
    "eval.samples": None,
    "export": None,
    "logging.logging_steps": 1,
    "telemetry.trackers": None,
    "telemetry.profile_steps": None,
    "telemetry.flops_profiler": False,
    "telemetry.comms_logger": False,
    "launch.max_restarts": 0,
    "launch.min_hosts": None,
}
"""Settings of every trial that differ from the run's: a trial measures steps, saves nothing and uses no tracker. Every
run evaluates at its end; a trial evaluates one batch, after all steps.
"""


@dataclass(frozen=True, slots=True)
class TrialSettings:
    """Settings of all trials: the spec with the user's own overrides, options for `harness launch` itself, the folder
    of their output, the number of steps, how many of these are not measured, and the seconds a trial may take.
    """

    spec: str
    overrides: Sequence[str]
    launch_options: Sequence[str]
    folder: Path
    steps: int
    skip: int
    timeout: float


def run_trial(plan: TrialSettings, run: ResolvedRun, candidate: Candidate, number: int, best: Trial | None) -> Trial:
    """One trial, `number` from 0. Ended early when it is far behind `best`, or out of time. Passes on
    KeyboardInterrupt after its child processes have ended.
    """
    output = plan.folder / f"trial-{number}"
    output.mkdir(parents=True, exist_ok=True)
    start = time.monotonic()
    answer = output / "launch.json"
    with answer.open("wb") as stdout, (output / "launch.log").open("ab") as stderr:
        child = spawn_child(launch_command(plan, run, candidate.changes, output), Path.cwd(), stdout, stderr)
        try:
            early_end = _monitor_trial(child, plan, output, best, start + plan.timeout)
        finally:
            terminate_child(child, immediately=True)
    state, cause = (early_end, "") if early_end else state_of_launch(json_of(answer))
    return _with_measurements(Trial(candidate, state, cause=cause, wall_seconds=time.monotonic() - start), plan, output)


def launch_command(plan: TrialSettings, run: ResolvedRun, sets: SpecChanges, output: Path) -> list[str]:
    """`harness launch` of the spec with the user's changes, then the candidate's, then those of every trial."""
    changes = [*plan.overrides]
    changes += [f"{join_key(path)}={json.dumps(value)}" for path, value in sets.items()]
    overrides = {**_TRIAL_OVERRIDES, "train.max_steps": plan.steps, "launch.output_dir": str(output)}
    for key in ("warmup_steps", "decay_steps"):
        if getattr(run.spec.scheduler, key) is not None:
            overrides[f"scheduler.{key}"] = 1
    changes += [f"{key}={json.dumps(value)}" for key, value in overrides.items()]
    command = python_command("-m", "harness", "launch", "--progress", "plain", "--format", "json")
    options = (word for change in changes for word in ("--set", change))
    return [*command, *plan.launch_options, *options, "--", plan.spec]


def _monitor_trial(
    child: subprocess.Popen[bytes], plan: TrialSettings, output: Path, best: Trial | None, until: float
) -> TrialState | None:
    """Wait until the launch has ended (None), is out of time, or is far behind the best."""
    while child.poll() is None:
        if time.monotonic() > until:
            return "timed out"
        run_dir = find_run_dir(output) if best is not None else None
        if run_dir is not None and is_far_behind(step_seconds(read_metrics(run_dir)[0], plan.skip), best):
            return "dropped"
        time.sleep(_POLL_SECONDS)
    return None


def _with_measurements(trial: Trial, plan: TrialSettings, output: Path) -> Trial:
    """The trial with the measurements of its run directory, or with the cause if they are missing."""
    run_dir = find_run_dir(output)
    if run_dir is None:
        return replace(
            trial,
            state="failed" if trial.state in ("measured", "dropped") else trial.state,
            cause=trial.cause or _read_launch_error(output / "launch.log"),
        )
    trial = replace(trial, run_dir=str(run_dir), **measurements_of(read_run_record(run_dir), plan.skip))
    if trial.state == "measured" and not trial.seconds:
        return replace(trial, state="failed", cause="it ended before a measured step")
    if trial.state == "timed out":
        return replace(trial, cause=f"not finished after {plan.timeout:.0f} s" + _diagnose_failure(run_dir))
    if trial.state == "dropped":
        return replace(trial, cause="its first steps were much slower than the best")
    return trial


def find_run_dir(output: Path) -> Path | None:
    """The run directory of a trial; None before there is one."""
    runs = sorted(path.parent for path in output.glob("*/spec.resolved.json") if not path.parent.is_symlink())
    return runs[0] if runs else None


def _diagnose_failure(run_dir: Path) -> str:
    try:
        diagnosis = diagnose_run(run_dir)
    except (OSError, UserError):
        return ""
    return f": {diagnosis.title}" if diagnosis.state == "failed" and diagnosis.title else ""


def _read_launch_error(log: Path) -> str:
    """The first error of a launch that started no run, else its last line."""
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines() if log.is_file() else []
    texts = [line.strip() for line in lines if line.strip()]
    return next((line for line in texts if line.startswith("error")), texts[-1] if texts else "no run was started")[
        :300
    ]
