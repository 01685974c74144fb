"""Carries a launch plan out: ops, ranks, verdict, export. Everything that it starts has ended when it returns.

The run directory must have been written before (`rundir`).
"""

from __future__ import annotations

import json
import os
import signal
import time
from dataclasses import dataclass, replace
from pathlib import Path

from harness.errors import ExitCode
from harness.interpreter import python_command
from harness.launching.ops.local_build import ensure_ops
from harness.launching.ops.remote_build import build_on_hosts
from harness.launching.process.child_process import kill_session, spawn_child
from harness.launching.process.signals import SignalInterrupt, Signals
from harness.launching.setup.launch_context import LaunchContext, LaunchObserver
from harness.launching.setup.launch_plan import LaunchPlan
from harness.launching.setup.prewarmed_launcher import PrewarmedLauncher
from harness.launching.setup.run_dir import acquire_lock, checkpoint_step, newest_complete_checkpoint
from harness.launching.supervise.supervisor import ReplanWithoutHosts, save_verdict, supervise_run
from harness.nvme_dirs import remove_stale_swap_dirs, swap_dirs_of
from harness.plan.resolved_run import ResolvedRun
from harness.units import format_bytes, parse_bytes
from harness.verdicts import State, Verdict


@dataclass(frozen=True, slots=True)
class LaunchResult:
    """How a launch ended and what it left: the newest complete checkpoint and the export, if there are any."""

    plan: LaunchPlan
    verdict: Verdict
    seconds: float
    checkpoint: Path | None = None
    export: Path | None = None
    ranks_started: bool = True
    attempts: int = 1


def run_launch(
    plan: LaunchPlan,
    run: ResolvedRun,
    scripts: Path,
    observer: LaunchObserver,
    replan_without_hosts: ReplanWithoutHosts | None = None,
    prewarmed_launcher: PrewarmedLauncher | None = None,
) -> LaunchResult:
    """Run the plan to its end, whatever that is.

    SIGINT, SIGTERM and SIGHUP stop it in two phases: first the file `stop` and `launch.stop_grace_seconds`, then, or at
    the second signal, everything is killed. SIGUSR1 does without the second phase. While ops compile, before any rank
    trains and during the export there is nothing to finish, and the stop is immediate. Raises Refused when the ops
    cannot be compiled or the run directory is in use.
    """
    began = time.monotonic()
    with Signals() as signals:
        services = LaunchContext(scripts, observer, signals, prewarmed_launcher)
        try:
            _build_ops(plan, services)
        except SignalInterrupt as stop:
            name, reason = signal.Signals(stop.signum).name, "nothing was started, compiling was broken off"
            verdict = Verdict("stopped", 128 + stop.signum, reason, signal=name, time=time.time())
            save_verdict(plan, verdict, services)
            return LaunchResult(plan, verdict, time.monotonic() - began, ranks_started=False)
        lock = acquire_lock(plan.run_dir) if plan.is_leader else None
        try:
            verdict, attempts = supervise_run(
                plan, run, services, lock.touch if lock else lambda: None, replan_without_hosts
            )
        finally:
            _remove_swap_folders(plan, services)
            if lock:
                lock.release()
        seconds = time.monotonic() - began
        outcome = LaunchResult(plan, verdict, seconds, newest_complete_checkpoint(plan.run_dir), attempts=len(attempts))
        if verdict.state == "completed" and run.spec.export.at_end and plan.is_leader:
            outcome = _export_at_end(outcome, run, services)
            if outcome.verdict != verdict:
                save_verdict(plan, outcome.verdict, services)
    return replace(outcome, seconds=time.monotonic() - began)


def _remove_swap_folders(plan: LaunchPlan, services: LaunchContext) -> None:
    """What ranks that were killed have left on this machine's NVMe; the others are swept at the next start there."""
    for parent in {folder.parent for folder in swap_dirs_of(json.loads(plan.documents.get("ds_config.json", "{}")))}:
        for gone in remove_stale_swap_dirs(parent):
            services.observer.on_note(f"removed {gone.folder}, {format_bytes(gone.size)} that a killed run had swapped")


def _build_ops(plan: LaunchPlan, services: LaunchContext) -> None:
    """Every host has its ops before any rank starts, so that ranks neither wait for the compiler nor race for it."""
    with build_on_hosts(plan, services):
        if plan.has_local_ranks:
            ensure_ops(plan.ops, plan.environment(os.environ), plan.run_dir / "logs" / "ops.log", services)


def _export_at_end(outcome: LaunchResult, run: ResolvedRun, services: LaunchContext) -> LaunchResult:
    """The export belongs to the run: when it fails, the run has failed, though what was trained is kept."""
    checkpoint = outcome.checkpoint or _resumed_final_checkpoint(outcome)
    if checkpoint is None:
        reason = (
            "training is complete; nothing to export: no checkpoint was saved (`checkpoint.save_at_end: true` does)"
        )
        return _with_verdict(outcome, "failed", ExitCode.FINDINGS, reason)
    target = outcome.plan.run_dir / "export"
    export = run.spec.export
    options = ["--dtype", export.dtype] if export.dtype else []
    if export.max_shard_size is not None:
        options += ["--max-shard-bytes", str(parse_bytes(export.max_shard_size))]
    options += ["--lora", export.lora] if export.lora != "merge" else []
    options += ["--verify"] if export.verify else []
    options += ["--allow-local-code"] if _is_code_of_this_run(outcome.plan, run, checkpoint) else []
    if export.sample_prompt is not None:
        options += ["--sample-prompt", export.sample_prompt, "--sample-tokens", str(export.sample_tokens)]
    log = outcome.plan.run_dir / "logs" / "export.log"
    try:
        code = run_export(checkpoint, target, options, services, log)
    except SignalInterrupt as stop:
        reason = "training is complete and saved; the export was broken off"
        return _with_verdict(outcome, "stopped", 128 + stop.signum, reason)
    if code:
        reason = f"training is complete and saved; the export ended with code {code}, see {log}"
        return _with_verdict(outcome, "failed", code if code > 0 else 128 - code, reason)
    services.observer.on_note(f"exported to {target}")
    return replace(outcome, export=target)


def _is_code_of_this_run(plan: LaunchPlan, run: ResolvedRun, checkpoint: Path) -> bool:
    """Whether code that the model brings is what this run was allowed by its spec. A checkpoint from elsewhere, with no
    step left to train, may bring other code.
    """
    ours = checkpoint.resolve().is_relative_to(plan.run_dir.resolve().parent)
    return run.spec.model.trust_remote_code and ours


def _with_verdict(outcome: LaunchResult, state: State, code: int, reason: str) -> LaunchResult:
    """With another end than that of the ranks, who completed."""
    verdict = replace(outcome.verdict, state=state, code=code, reason=reason, time=time.time())
    return replace(outcome, verdict=verdict)


def _resumed_final_checkpoint(outcome: LaunchResult) -> Path | None:
    """The checkpoint that was resumed from, when no step was left to train: it is what this run ended with."""
    resume = outcome.plan.resume
    return resume if resume is not None and checkpoint_step(resume) == outcome.verdict.step else None


def run_export(checkpoint: Path, target: Path, options: list[str], services: LaunchContext, log: Path | None) -> int:
    """Run `export_worker.py` with this Python; returns its exit code. Raises Interrupted when a signal came.

    Output goes to `log`, or to the caller's own stdout and stderr.
    """
    worker = str(services.scripts / "export_worker.py")
    command = python_command(worker, "--checkpoint", str(checkpoint), "--out", str(target), *options)
    stream = log.open("ab") if log is not None else None
    try:
        child = spawn_child(command, Path.cwd(), stream, stream)
        try:
            while child.poll() is None:
                services.signals.raise_if_received()
                time.sleep(0.1)
        finally:
            kill_session(child, 1.0)
    finally:
        if stream is not None:
            stream.close()
    return child.returncode


def read_sample(run_dir: Path) -> str:
    """The text that was generated from the export; empty when there is none."""
    try:
        return (run_dir / "sample.txt").read_text(encoding="utf-8")
    except OSError:
        return ""
