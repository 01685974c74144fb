# SPDX-License-Identifier: Apache-2.0
"""Runs a launch plan: ops, ranks, verdict, export. No process of its own is left when it returns.

The run directory must exist (`harness.launching.setup.run_dir` writes it).
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Literal

from harness.checkpoints.latest import find_latest
from harness.errors import ExitCode, UserError
from harness.file_io import relative_to_cwd
from harness.launching.ops.local_build import ensure_ops
from harness.launching.ops.remote_build import build_on_hosts
from harness.launching.process.signals import SignalInterrupt, Signals
from harness.launching.setup.environment import SECRETS_FILE
from harness.launching.setup.launch_context import LaunchContext, LaunchObserver
from harness.launching.setup.launch_plan import LaunchPlan
from harness.launching.setup.launch_request import LaunchRejected, LaunchSetup
from harness.launching.setup.no_ssh import wait_for_leader
from harness.launching.setup.prepare import replan_without_hosts
from harness.launching.setup.prewarmed_launcher import PrewarmedLauncher
from harness.launching.setup.run_dir import acquire_lock, write_run_dir
from harness.launching.supervise.cleanup import remove_swap_folders
from harness.launching.supervise.export_step import export_at_end, require_final_checkpoint
from harness.launching.supervise.notifier import Notifier
from harness.launching.supervise.supervisor import ReplanWithoutHosts, supervise_run
from harness.launching.supervise.verdict_files import save_last_verdict
from harness.run.resolved_run import ResolvedRun
from harness.verdicts import Verdict


@dataclass(frozen=True, slots=True)
class LaunchResult:
    """The verdict on a launch, its newest complete checkpoint and its export, if there are any."""

    plan: LaunchPlan
    verdict: Verdict
    seconds: float
    checkpoint: Path | None = None
    export: Path | None = None
    ranks_started: bool = True
    attempts: int = 1


def run_setup(
    setup: LaunchSetup, observer: LaunchObserver, log: Callable[[str], None]
) -> LaunchResult | LaunchRejected:
    """Write the run directory, or wait for that of the first host, and run the plan to its end. Raises UserError where
    there is no run directory.
    """
    plan, per_node = setup.plan, setup.request.per_node
    if per_node is None or plan.is_leader:
        write_run_dir(plan)
    else:
        plan = wait_for_leader(plan, per_node.wait_seconds, log)
        setup = replace(setup, plan=plan)
    replan = partial(replan_without_hosts, setup)
    notifier = Notifier(setup.request.notify if plan.is_leader else None, plan.name, plan.run_dir)
    args = (plan, setup.run, setup.local_host.scripts, observer, replan, setup.prewarmed_launcher, notifier.send)
    try:
        result = run_launch(*args)
        notifier.send_end(result.verdict)
        return result
    except UserError as error:
        notifier.send("failure", f"no rank was started: {error.findings[0].message}")
        closing = f"No rank was started. The run directory {relative_to_cwd(plan.run_dir)} is kept"
        return LaunchRejected(error.findings, None, error.code, closing)
    except Exception as error:
        notifier.send("failure", f"the harness itself failed: {type(error).__name__}")
        raise
    finally:
        for problem in notifier.close():
            log(f"warning: {problem}")


def run_launch(
    plan: LaunchPlan,
    run: ResolvedRun,
    scripts: Path,
    observer: LaunchObserver,
    replan_without_hosts: ReplanWithoutHosts | None = None,
    prewarmed_launcher: PrewarmedLauncher | None = None,
    notify: Callable[[Literal["stall", "failure"], str], None] = lambda _event, _text: None,
) -> LaunchResult:
    """Run the plan to its end. `notify` hears of a stall, and of each failure that a restart follows.

    SIGINT, SIGTERM and SIGHUP stop it in two phases: first the file `stop` and `launch.stop_grace_seconds`, then, or at
    the second signal, everything is killed. SIGUSR1 does without the second phase. While ops compile, before any rank
    trains and during the export there is nothing to finish, and the stop is immediate. Raises UserError when the ops
    cannot be compiled or the run directory is in use.
    """
    start = time.monotonic()
    with Signals() as signals:
        context = LaunchContext(scripts, observer, signals, prewarmed_launcher, notify)
        try:
            _build_ops(plan, run, context)
        except UserError:
            _remove_secrets(plan, context)
            raise
        except SignalInterrupt as interrupt:
            _remove_secrets(plan, context)
            name, reason = signal.Signals(interrupt.signum).name, "nothing was started, compiling was interrupted"
            seconds = time.monotonic() - start
            verdict = Verdict("stopped", 128 + interrupt.signum, reason, signal=name, time=time.time(), seconds=seconds)
            save_last_verdict(plan, verdict, context)
            return LaunchResult(plan, verdict, seconds, ranks_started=False)
        lock = acquire_lock(plan.run_dir) if plan.is_leader else None
        heartbeat = lock.touch if lock else lambda: None
        try:
            result = _train_and_export(plan, run, context, heartbeat, replan_without_hosts)
        except UserError:
            raise
        except Exception as error:  # a run whose supervisor failed has a verdict, too
            reason = f"the harness itself failed: {type(error).__name__}: {error}"
            verdict = Verdict("failed", ExitCode.BUG, reason, time=time.time(), seconds=time.monotonic() - start)
            save_last_verdict(plan, verdict, context)
            raise
        finally:
            if lock:
                lock.release()
        seconds = time.monotonic() - start
        verdict = replace(result.verdict, seconds=round(seconds, 3))
        save_last_verdict(plan, verdict, context)
    return replace(result, verdict=verdict, seconds=seconds)


def _train_and_export(
    plan: LaunchPlan,
    run: ResolvedRun,
    context: LaunchContext,
    heartbeat: Callable[[], None],
    replan_without_hosts: ReplanWithoutHosts | None,
) -> LaunchResult:
    """All attempts, and the export. A run that completed has the checkpoint of its last step where the spec saves one;
    on own disks only a host with ranks can tell.
    """
    exports = run.spec.export.at_end and plan.is_leader
    try:
        args = (plan, run.spec.launch, context, heartbeat, replan_without_hosts)
        verdict, attempts = supervise_run(*args, exports=exports)
    finally:
        remove_swap_folders(plan, context)
        _remove_secrets(plan, context)
    checkpoint = find_latest(plan.run_dir / "checkpoints", verify="sizes").checkpoint
    is_seen = plan.is_leader and (plan.shared_disk or plan.has_local_ranks)
    saves_itself = run.spec.plugins.script is not None and verdict.step == 0  # no step of `harness.train`
    if verdict.state == "completed" and run.spec.checkpoint.save_at_end and is_seen and not saves_itself:
        verdict = require_final_checkpoint(plan, verdict, checkpoint)
    export = None
    if verdict.state == "completed" and exports and saves_itself:
        context.observer.on_note("nothing is exported (`export.at_end`): the script trains and saves by itself")
    elif verdict.state == "completed" and exports:
        verdict, export = export_at_end(
            plan,
            run.spec.export,
            verdict,
            checkpoint,
            context,
            trust_remote_code=run.spec.model.trust_remote_code,
            heartbeat=heartbeat,
            launch_env=run.spec.launch.env,
        )
    return LaunchResult(plan, verdict, 0.0, checkpoint, export, attempts=len(attempts))


def _remove_secrets(plan: LaunchPlan, context: LaunchContext) -> None:
    file = plan.run_dir / SECRETS_FILE
    try:
        file.unlink(missing_ok=True)
    except OSError as error:
        if file.exists():
            reason = (error.strerror or str(error)).lower()
            note = f"{file} cannot be removed ({reason}): remove it, it has the secrets of `launch.env`"
            context.observer.on_note(note)


def _build_ops(plan: LaunchPlan, run: ResolvedRun, context: LaunchContext) -> None:
    """Make the ops of every host ready before any rank starts, so that no rank waits for a compiler or races."""
    spec = run.spec
    has_own_code = spec.model.trust_remote_code or (spec.plugins.file is not None and spec.data.packing)
    asked = plan.run_dir / "spec.resolved.json" if has_own_code else None
    with build_on_hosts(plan, context):
        if plan.has_local_ranks:
            ensure_ops(plan.ops, plan.environment(os.environ), plan.run_dir / "logs" / "ops.log", context, asked)
