"""Carries a launch plan out: ops, ranks, verdict, export. Everything that it starts has ended when it returns.

The run directory must have been written before (`rundir`).
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path

from harness.errors import Exit
from harness.launching.ahead import Ahead
from harness.launching.build import ensure_ops
from harness.launching.onlooker import Onlooker, Services
from harness.launching.ops_on_hosts import compiling_on_hosts
from harness.launching.plan import LaunchPlan
from harness.launching.processes import end_all, of_run
from harness.launching.rundir import complete_checkpoint, hold, step_of
from harness.launching.signals import Interrupted, Signals
from harness.launching.training import Shrink, keep, train
from harness.plan.run import Run
from harness.swap_folders import folders, sweep
from harness.units import format_bytes, parse_bytes
from harness.verdicts import State, Verdict


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a launch ended and what it left: the newest complete checkpoint and the export, if there are any."""

    plan: LaunchPlan
    verdict: Verdict
    seconds: float
    checkpoint: Path | None = None
    export: Path | None = None
    trained: bool = True
    attempts: int = 1


def execute(
    plan: LaunchPlan,
    run: Run,
    scripts: Path,
    onlooker: Onlooker,
    shrink: Shrink | None = None,
    ahead: Ahead | None = None,
) -> Outcome:
    """Run the plan to its end, whatever that is.

    SIGINT, SIGTERM and SIGHUP stop it in two phases: first the file `stop` and `launch.stop_grace_seconds`, then, or at
    the second signal, everything is killed. SIGUSR1 does without the second phase. While ops compile, before any rank
    trains and during the export there is nothing to finish, and the stop is immediate. Raises Refused when the ops
    cannot be compiled or the run directory is in use.
    """
    began = time.monotonic()
    with Signals() as signals:
        services = Services(scripts, onlooker, signals, ahead)
        try:
            _prepare_ops(plan, services)
        except Interrupted as stop:
            name, reason = signal.Signals(stop.signum).name, "nothing was started, compiling was broken off"
            verdict = Verdict("stopped", 128 + stop.signum, reason, signal=name, time=time.time())
            keep(plan, verdict, services)
            return Outcome(plan, verdict, time.monotonic() - began, trained=False)
        lock = hold(plan.run_dir) if plan.leads else None
        try:
            verdict, attempts = train(plan, run, services, lock.touch if lock else lambda: None, shrink)
        finally:
            _remove_swapped(plan, services)
            if lock:
                lock.release()
        seconds = time.monotonic() - began
        outcome = Outcome(plan, verdict, seconds, complete_checkpoint(plan.run_dir), attempts=len(attempts))
        if verdict.state == "completed" and run.spec.export.at_end and plan.leads:
            outcome = _export_at_end(outcome, run, services)
            if outcome.verdict != verdict:
                keep(plan, outcome.verdict, services)
    return replace(outcome, seconds=time.monotonic() - began)


def _remove_swapped(plan: LaunchPlan, services: Services) -> None:
    """What ranks that were killed have left on this machine's NVMe; the others are swept at the next start there."""
    for parent in {folder.parent for folder in folders(json.loads(plan.documents.get("ds_config.json", "{}")))}:
        for gone in sweep(parent):
            services.onlooker.note(f"removed {gone.folder}, {format_bytes(gone.size)} that a killed run had swapped")


def _prepare_ops(plan: LaunchPlan, services: Services) -> None:
    """Every host has its ops before any rank starts, so that ranks neither wait for the compiler nor race for it."""
    with compiling_on_hosts(plan, services):
        if plan.trains_here:
            ensure_ops(plan.ops, plan.environment(os.environ), plan.run_dir / "logs" / "ops.log", services)


def _export_at_end(outcome: Outcome, run: Run, services: Services) -> Outcome:
    """The export belongs to the run: when it fails, the run has failed, though what was trained is kept."""
    checkpoint = outcome.checkpoint or _resumed_at_its_end(outcome)
    if checkpoint is None:
        reason = (
            "training is complete; nothing to export: no checkpoint was saved (`checkpoint.save_at_end: true` does)"
        )
        return _ended(outcome, "failed", Exit.FINDINGS, reason)
    target = outcome.plan.run_dir / "export"
    export = run.spec.export
    options = ["--dtype", export.dtype] if export.dtype else []
    if export.max_shard_size is not None:
        options += ["--max-shard-bytes", str(parse_bytes(export.max_shard_size))]
    options += ["--lora", export.lora] if export.lora != "merge" else []
    options += ["--verify"] if export.verify else []
    options += ["--allow-local-code"] if _code_is_the_runs(outcome.plan, run, checkpoint) else []
    if export.sample_prompt is not None:
        options += ["--sample-prompt", export.sample_prompt, "--sample-tokens", str(export.sample_tokens)]
    log = outcome.plan.run_dir / "logs" / "export.log"
    try:
        code = run_export(checkpoint, target, options, services, log)
    except Interrupted as stop:
        reason = "training is complete and saved; the export was broken off"
        return _ended(outcome, "stopped", 128 + stop.signum, reason)
    if code:
        reason = f"training is complete and saved; the export ended with code {code}, see {log}"
        return _ended(outcome, "failed", code if code > 0 else 128 - code, reason)
    services.onlooker.note(f"exported to {target}")
    return replace(outcome, export=target)


def _code_is_the_runs(plan: LaunchPlan, run: Run, checkpoint: Path) -> bool:
    """Whether code that the model brings is what this run was allowed by its spec. A checkpoint from elsewhere, with no
    step left to train, may bring other code.
    """
    ours = checkpoint.resolve().is_relative_to(plan.run_dir.resolve().parent)
    return run.spec.model.trust_remote_code and ours


def _ended(outcome: Outcome, state: State, code: int, reason: str) -> Outcome:
    """With another end than that of the ranks, who completed."""
    verdict = replace(outcome.verdict, state=state, code=code, reason=reason, time=time.time())
    return replace(outcome, verdict=verdict)


def _resumed_at_its_end(outcome: Outcome) -> Path | None:
    """The checkpoint that was resumed from, when no step was left to train: it is what this run ended with."""
    resume = outcome.plan.resume
    return resume if resume is not None and step_of(resume) == outcome.verdict.step else None


def run_export(checkpoint: Path, target: Path, options: list[str], services: Services, log: Path | None) -> int:
    """Run `launch/export.py` with this Python; returns its exit code. Raises Interrupted when a signal came.

    Output goes to `log`, or to the caller's own stdout and stderr.
    """
    command = [sys.executable, str(services.scripts / "export.py")]
    command += ["--checkpoint", str(checkpoint), "--out", str(target), *options]
    stream = log.open("ab") if log is not None else None
    try:
        child = subprocess.Popen(  # noqa: S603
            command, stdin=subprocess.DEVNULL, stdout=stream, stderr=stream, start_new_session=True
        )
        try:
            while child.poll() is None:
                services.signals.check()
                time.sleep(0.1)
        finally:
            end_all(lambda: of_run(Path("/nonexistent"), child.pid), 1.0)
            child.wait()
    finally:
        if stream is not None:
            stream.close()
    return child.returncode


def sample_of(run_dir: Path) -> str:
    """The text that was generated from the export; empty when there is none."""
    try:
        return (run_dir / "sample.txt").read_text(encoding="utf-8")
    except OSError:
        return ""
