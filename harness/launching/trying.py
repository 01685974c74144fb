"""Runs one candidate of `harness tune` by the command that a user would type, and looks on while it takes its steps.

What is tried, and what its steps mean, is decided in `harness.tuning`.
"""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from harness.errors import Refused
from harness.interpreter import python
from harness.launching.commands import end, start
from harness.launching.explaining import diagnose_run
from harness.plan.run import Run
from harness.records.files import json_of, metrics_of
from harness.records.record import read_record
from harness.spec.source import dotted
from harness.tuning.candidates import Candidate
from harness.tuning.keys import Sets
from harness.tuning.trials import State, Trial, far_behind, measured, state_of, step_seconds

_LOOK_EVERY = 0.25
_ONLY_TRAINING: dict[str, Any] = {
    "train.num_train_epochs": None,
    "checkpoint.save_steps": None,
    "checkpoint.save_at_end": False,
    "checkpoint.keep_best": False,
    "eval.eval_steps": None,
    "eval.eval_on_start": False,
    "eval.early_stopping_patience": None,
    "eval.max_batches": 1,
    "export": None,
    "logging.logging_steps": 1,
    "telemetry.trackers": None,
    "telemetry.profile_steps": None,
    "telemetry.flops_profiler": False,
    "telemetry.comms_logger": False,
    "launch.max_restarts": 0,
    "launch.min_hosts": None,
}
"""What every trial has otherwise than the run: it measures steps, keeps nothing and tells no tracker. Every run
evaluates at its end; here one batch, when all steps are over.
"""


@dataclass(frozen=True, slots=True)
class Plan:
    """How trials are run: the spec with the user's own options, `options` for `harness launch` itself, the folder for
    what they leave, how many steps, how many of these are not measured, and seconds a trial may take.
    """

    spec: str
    overrides: Sequence[str]
    options: Sequence[str]
    folder: Path
    steps: int
    skip: int
    timeout: float


def try_out(plan: Plan, run: Run, candidate: Candidate, number: int, best: Trial | None) -> Trial:
    """One trial, `number` from 0. Ended early when it is far behind `best`, or out of time. Raises nothing of its own;
    at a KeyboardInterrupt everything that was started has ended.
    """
    output = plan.folder / f"trial-{number}"
    output.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    answer = output / "launch.json"
    with answer.open("wb") as stdout, (output / "launch.log").open("ab") as stderr:
        child = start(command(plan, run, candidate.sets, output), Path.cwd(), stdout, stderr)
        try:
            ended = _look_on(child, plan, output, best, began + plan.timeout)
        finally:
            end(child, at_once=True)
    state, cause = (ended, "") if ended else state_of(json_of(answer))
    return _told(Trial(candidate, state, cause=cause, wall=time.monotonic() - began), plan, output)


def command(plan: Plan, run: Run, sets: Sets, output: Path) -> list[str]:
    """`harness launch` of the spec with the user's changes, then the candidate's, then those of every trial."""
    changes = [*plan.overrides]
    changes += [f"{dotted(path)}={json.dumps(value)}" for path, value in sets.items()]
    alike = {**_ONLY_TRAINING, "train.max_steps": plan.steps, "launch.output_dir": str(output)}
    for key in ("warmup_steps", "decay_steps"):
        if getattr(run.spec.scheduler, key) is not None:
            alike[f"scheduler.{key}"] = 1
    changes += [f"{key}={json.dumps(value)}" for key, value in alike.items()]
    words = python("-m", "harness", "launch", plan.spec, "--progress", "plain", "--format", "json")
    return [*words, *plan.options, *(word for change in changes for word in ("--set", change))]


def _look_on(
    child: subprocess.Popen[bytes], plan: Plan, output: Path, best: Trial | None, until: float
) -> State | None:
    """Until the launch has ended (None), is out of time, or is far behind the best."""
    while child.poll() is None:
        if time.monotonic() > until:
            return "timed out"
        run_dir = run_dir_in(output) if best is not None else None
        if run_dir is not None and far_behind(step_seconds(metrics_of(run_dir)[0], plan.skip), best):
            return "dropped"
        time.sleep(_LOOK_EVERY)
    return None


def _told(trial: Trial, plan: Plan, output: Path) -> Trial:
    """With what the run directory has, and a cause where there is no measurement."""
    run_dir = run_dir_in(output)
    if run_dir is None:
        return replace(trial, state=_without(trial.state), cause=trial.cause or _refusal(output / "launch.log"))
    trial = replace(trial, run_dir=str(run_dir), **measured(read_record(run_dir), plan.skip))
    if trial.state == "measured" and not trial.seconds:
        return replace(trial, state="failed", cause="it ended before a step was measured")
    if trial.state == "timed out":
        return replace(trial, cause=f"not done after {plan.timeout:.0f} s" + _diagnosis(run_dir))
    if trial.state == "dropped":
        return replace(trial, cause="its first steps were far behind the best so far")
    return trial


def _without(state: State) -> State:
    return "failed" if state in ("measured", "dropped") else state


def run_dir_in(output: Path) -> Path | None:
    """The run directory of a trial; None before there is one."""
    found = sorted(path.parent for path in output.glob("*/spec.resolved.json") if not path.parent.is_symlink())
    return found[0] if found else None


def _diagnosis(run_dir: Path) -> str:
    try:
        found = diagnose_run(run_dir)
    except (OSError, Refused):
        return ""
    return f": {found.title}" if found.state == "failed" and found.title else ""


def _refusal(log: Path) -> str:
    """What a launch said that began nothing."""
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines() if log.is_file() else []
    said = [line.strip() for line in lines if line.strip()]
    return next((line for line in said if line.startswith("error")), said[-1] if said else "it began nothing")[:300]
