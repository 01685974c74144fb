# SPDX-License-Identifier: Apache-2.0
"""The export of a checkpoint: as the last step of a run (`export.at_end`), and for `harness export`."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import IO

from harness.checkpoints.latest import saved_step
from harness.checkpoints.lineage import find_lineage
from harness.checkpoints.store_export import upload_export
from harness.checkpoints.store_transfer import upload_command
from harness.errors import ExitCode
from harness.interpreter import python_command
from harness.launching.process.child_process import kill_session, spawn_child
from harness.launching.process.signals import SignalInterrupt, signal_name
from harness.launching.setup.launch_context import LaunchContext
from harness.launching.setup.launch_plan import LaunchPlan
from harness.launching.setup.store_checks import with_environment
from harness.launching.supervise.log_streams import LineTail
from harness.object_stores.store_errors import StoreError
from harness.progress import EXPORT_PHASES
from harness.spec.sections.checkpoint_spec import ExportSpec
from harness.units import parse_bytes
from harness.verdicts import State, Verdict


def export_at_end(
    plan: LaunchPlan,
    export: ExportSpec,
    verdict: Verdict,
    checkpoint: Path | None,
    context: LaunchContext,
    *,
    trust_remote_code: bool,
    heartbeat: Callable[[], None] = lambda: None,
    launch_env: Mapping[str, str] | None = None,
) -> tuple[Verdict, Path | None]:
    """Export the checkpoint of the last step. `trust_remote_code` is that of the spec; `heartbeat` is called often.

    Returns the verdict of the whole run and the folder of the export, where that is complete: when the export fails,
    the run has failed, though its checkpoints stay.
    """
    source = final_checkpoint(plan, verdict, checkpoint)
    if source is None:
        missing = _describe_missing(verdict, checkpoint)
        reason = f"training is complete; nothing to export: {missing} (`checkpoint.save_at_end: true` saves it)"
        return _with_reason(verdict, "failed", ExitCode.FINDINGS, reason), None
    target = plan.run_dir / "export"
    log = plan.run_dir / "logs" / "export.log"
    # A checkpoint from elsewhere, with no step left to train, may bring other code than the spec of this run allowed.
    is_own = source.resolve().is_relative_to(plan.run_dir.resolve().parent)
    args = _export_args(export, trust_remote_code and is_own)
    context.observer.on_note(f"exporting {source.name}")
    try:
        code = run_export(source, target, args, context, log, heartbeat)
    except SignalInterrupt as interrupt:
        part, whole = _unfinished_part(target)
        reason = f"training is complete and saved{part} was interrupted"
        return _with_reason(verdict, "stopped", 128 + interrupt.signum, reason), whole
    if code:
        part, whole = _unfinished_part(target)
        reason = f"training is complete and saved{part} {_describe_exit(code)}, see {log}"
        return _with_reason(verdict, "failed", code if code > 0 else 128 - code, reason), whole
    if not target.is_dir():
        reason = f"training is complete and saved; the export ended without an error, and there is no {target}"
        return _with_reason(verdict, "failed", ExitCode.FINDINGS, reason), None
    context.observer.on_note(f"exported to {target}")
    if export.upload_to is not None:
        context.observer.on_note(f"uploading the export to {export.upload_to}")
        try:
            with with_environment(launch_env or {}):
                is_interrupted = lambda: bool(context.signals.received)  # noqa: E731
                runs = find_lineage(source).runs_at(None)
                upload_export(target, export.upload_to, is_interrupted, lambda _: heartbeat(), runs)
        except StoreError as error:
            reason = f"trained, saved and exported; not uploaded: the export is not in `{export.upload_to}`: {error}"
            later = _with_reason(verdict, "completed", ExitCode.NOT_UPLOADED, reason)
            note = f"to upload the export later: {upload_command(target, export.upload_to)}"
            return replace(later, notes=(*later.notes, note)), target
        context.observer.on_note(f"uploaded to {export.upload_to}")
    return verdict, target


def require_final_checkpoint(plan: LaunchPlan, verdict: Verdict, checkpoint: Path | None) -> Verdict:
    """The verdict on a completed run that saves its last step: failed without that checkpoint. `checkpoint` is the
    newest one.
    """
    if final_checkpoint(plan, verdict, checkpoint) is not None:
        return verdict
    reason = f"training is complete; its weights are not saved: {_describe_missing(verdict, checkpoint)}"
    return _with_reason(verdict, "failed", ExitCode.FINDINGS, reason)


def final_checkpoint(plan: LaunchPlan, verdict: Verdict, checkpoint: Path | None) -> Path | None:
    """The checkpoint of the last step: the newest one of the run, or that which it resumed from, where no step was left
    to train. None where neither is of that step.
    """
    candidates = [path for path in (checkpoint, plan.resume) if path is not None]
    return next((path for path in candidates if saved_step(path) == verdict.step), None)


def _describe_missing(verdict: Verdict, checkpoint: Path | None) -> str:
    newest = "none was completed" if checkpoint is None else f"the newest is {checkpoint.name}"
    return f"there is no checkpoint of step {verdict.step}, {newest}"


def _describe_exit(code: int) -> str:
    if code >= 0:
        return f"ended with code {code}"
    return f"was killed by {signal_name(-code)}"


def _unfinished_part(target: Path) -> tuple[str, Path | None]:
    """The part of an export that did not end, and the folder where that is complete: it appears by one rename, and only
    the sample comes after it.
    """
    return (", so is the export; its sample", target) if target.is_dir() else ("; the export", None)


def run_export(
    checkpoint: Path,
    target: Path,
    options: list[str],
    context: LaunchContext,
    log: Path | None,
    heartbeat: Callable[[], None] = lambda: None,
) -> int:
    """Run `export_worker.py` with this Python; returns its exit code. Raises SignalInterrupt when a signal came.

    Output goes to `log`, and its phases to the observer; without a log to the caller's own stdout and stderr.
    """
    worker = str(context.scripts / "export_worker.py")
    command = python_command(worker, "--checkpoint", str(checkpoint), "--out", str(target), *options)
    stream = _open_log(log, context) if log is not None else None
    output = LineTail(log) if log is not None else None
    try:
        child = spawn_child(command, Path.cwd(), stream, stream)
        try:
            while child.poll() is None:
                context.signals.raise_if_received()
                heartbeat()
                for line in output.pop_lines() if output is not None else ():
                    if (text := line.decode("utf-8", "replace")) in EXPORT_PHASES:
                        context.observer.on_note(text)
                time.sleep(0.1)
        finally:
            kill_session(child, 1.0)
    finally:
        if stream is not None:
            stream.close()
    return child.returncode


def _open_log(log: Path, context: LaunchContext) -> IO[bytes]:
    """The log for appending; where the disk does not take it, this process's stderr."""
    try:
        return log.open("ab")
    except OSError as error:
        context.observer.on_note(f"{log} cannot be written: {(error.strerror or str(error)).lower()}")
        return os.fdopen(os.dup(2), "ab")


def read_sample(run_dir: Path) -> str:
    """The text that the export generated; empty if there is none."""
    try:
        return (run_dir / "sample.txt").read_text(encoding="utf-8")
    except OSError:
        return ""


def _export_args(export: ExportSpec, allow_code: bool) -> list[str]:
    args = ["--dtype", export.dtype] if export.dtype else []
    if export.max_shard_size is not None:
        args += ["--max-shard-bytes", str(parse_bytes(export.max_shard_size))]
    args += ["--lora", export.lora] if export.lora != "merge" else []
    args += ["--verify"] if export.verify else []
    args += ["--allow-local-code"] if allow_code else []
    if export.sample_prompt is not None:
        args += ["--sample-prompt", export.sample_prompt, "--sample-tokens", str(export.sample_tokens)]
    return args


def _with_reason(verdict: Verdict, state: State, code: int, reason: str) -> Verdict:
    """The verdict on a run whose ranks completed, changed by its export. What is not uploaded stays in it."""
    reason = "; ".join(filter(None, (reason, verdict.reason)))
    return replace(verdict, state=state, code=code, reason=reason, time=time.time())
