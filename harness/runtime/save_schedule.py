# SPDX-License-Identifier: Apache-2.0
"""The saves of a run: when one is due, and what is reported of each."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

from harness.checkpoints.latest import find_latest
from harness.checkpoints.lineage import find_lineage
from harness.errors import UserError
from harness.findings import Finding, Fix
from harness.runtime.checkpoint import CheckpointSaver, SaveOutcome, metadata
from harness.runtime.checkpoint.commit import prune_checkpoints
from harness.runtime.checkpoint.host_files import complete_on_hosts
from harness.runtime.checkpoint.uploader import StoreUploader, UploadOutcome
from harness.runtime.distributed import AgreedUserError
from harness.runtime.shutdown import local_stop_reason
from harness.runtime.telemetry.run_telemetry import Telemetry
from harness.runtime.train_context import TrainContext
from harness.runtime.train_state import TrainState
from harness.runtime.user_errors import print_findings
from harness.units import format_bytes, format_seconds


class SaveSchedule:
    """`checkpoint` of the spec for one run. Every method is a collective: all ranks call it at the same step.

    Each raises AgreedUserError for a save that failed, where that ends the run. As a context it waits for the save of
    the thread when an error ends the run on all ranks: a checkpoint of an earlier step is not lost with it.
    """

    def __init__(self, ctx: TrainContext, telemetry: Telemetry, resume: Path | None) -> None:
        """`resume` is the checkpoint that the run starts from: it is not overwritten."""
        self._ctx, self._telemetry, self._spec = ctx, telemetry, ctx.run_config.run.spec.checkpoint
        launch = ctx.run_config.run.spec.launch
        self._saver = CheckpointSaver.open(ctx.run_dir, ctx.distributed, self._spec, shared_disk=launch.shared_disk)
        self._saver.protected = resume.resolve() if resume else None
        self._saved_step: int | None = None
        """The step of the last complete checkpoint."""
        self._failed_step: int | None = None
        """The step of the last save that failed."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None and not isinstance(error, AgreedUserError):
            return  # other ranks may be elsewhere, and the threads wait for theirs
        with self._ctx.status.enter_phase("save"):
            outcomes = self._saver.wait_for_pending_save()
            for outcome in outcomes:
                self._write_row(outcome, self._ctx.status.step)
                self._print(outcome.warning)
                self._print(outcome.error)
        if self._saver.uploader is not None:
            self._finish_uploads(self._saver.uploader)
        with self._ctx.status.enter_phase("save"):
            self._collect_for_export()

    def start_uploads(self, resume: Path | None) -> None:
        """With `checkpoint.upload_to`: from now on each complete checkpoint is uploaded in the background."""
        url = self._spec.upload_to
        if url is None:
            return
        lineage = find_lineage(resume)
        self._saver.uploader = StoreUploader.open(
            self._ctx.distributed, self._spec, metadata.run_id(self._ctx.run_dir), lineage.runs_at(url), lineage.steps
        )

    def is_due(self, step: int) -> bool:
        """Is a checkpoint saved after this step?"""
        steps = self._spec.save_steps
        return steps is not None and step % steps == 0

    def save(self, state: TrainState) -> None:
        """Save; with `checkpoint.async_save` a thread goes on writing after this call."""
        with self._telemetry.pause("checkpoint"):
            self._save(state, background=self._spec.async_save)

    def report_finished(self, state: TrainState) -> None:
        """At the end of a step: report the save of the thread, once it has ended on all ranks."""
        self._report(state, self._saver.poll_pending_save())
        if self._saver.uploader is not None:
            self._report_uploads(self._saver.uploader.pop_outcomes())

    def save_last(self, state: TrainState) -> None:
        """The end of training: wait for all writes, then save unless that is done or `checkpoint.save_at_end` is off. A
        due save of this step that failed is tried again. The checkpoint of this step must succeed.
        """
        with self._telemetry.pause("checkpoint"):
            self._report(state, self._saver.wait_for_pending_save())
            is_wanted = self._spec.save_at_end or self._failed_step == state.step
            if is_wanted and self._saved_step != state.step:
                self._save(state, background=False, must_succeed=True)
        if self._saver.uploader is not None:
            finding = self._find_lost_prefix()
            self._ctx.distributed.raise_everywhere(None if finding is None else UserError([finding]))

    def stop_reason(self) -> str | None:
        """The reason why the run ends after this step, as far as this rank knows: its prefix in the store is another
        run's, and nothing that it would train has a copy. With `checkpoint.on_save_error: continue` it trains on.
        """
        finding = self._find_lost_prefix()
        return None if finding is None else finding.message

    def _find_lost_prefix(self) -> Finding | None:
        uploader = self._saver.uploader
        lost = uploader.lost_prefix if uploader is not None else None
        if lost is None or self._spec.on_save_error == "continue":
            return None
        notes = ("the run ends, since what it would train on has no copy; its last step is saved on the disk",)
        resume = f"--resume {self._ctx.run_dir.root} --set checkpoint.upload_to={self._spec.upload_to}-2"
        fix = Fix(f"resume it with another prefix: the same command with `{resume}`")
        return lost._replace(severity="error", notes=notes, fix=fix)

    def record_eval(self, state: TrainState, **figures: float) -> None:
        """Record an evaluation, which `state` counts: next to the checkpoints, and in that of its step."""
        self._saver.record_eval(state, **figures)

    def start_evals(self, step: int, resume: Path | None) -> None:
        """The run starts from this step of `resume`: keep the evaluations up to it, since later ones are run again."""
        self._saver.start_evals(step, resume)

    def _save(self, state: TrainState, *, background: bool, must_succeed: bool = False) -> None:
        outcomes = self._saver.save(self._ctx, state, background=background)
        self._telemetry.record_memory("save", state.step)
        self._report(state, outcomes, must_succeed=must_succeed)

    def _report(self, state: TrainState, outcomes: list[SaveOutcome], *, must_succeed: bool = False) -> None:
        """A row for each save that has ended. With `must_succeed` a failure ends the run."""
        for outcome in outcomes:
            self._write_row(outcome, state.step)
            self._print(outcome.warning)
            if outcome.error is None:
                self._saved_step = outcome.step
                continue
            self._failed_step = outcome.step
            if must_succeed or self._spec.on_save_error == "stop":
                raise AgreedUserError([outcome.error])
            self._print(outcome.error)

    def _write_row(self, outcome: SaveOutcome, step: int) -> None:
        """`step` is the one that training has reached."""
        metrics, status = self._ctx.metrics, self._ctx.status
        path = str(outcome.folder.relative_to(self._ctx.run_dir.root))
        fields = {
            "step": outcome.step,
            "path": path,
            "bytes": outcome.bytes,
            "background": outcome.background,
            "seconds": round(outcome.seconds, 6),
            "stall_seconds": round(outcome.stall_seconds, 6),
            "copy_seconds": round(outcome.copy_seconds, 6),
        }
        if outcome.error is None:
            metrics.write("save", **fields)
            status.update(status.state, step=step, checkpoint=path)
        else:
            metrics.write("save_failed", **fields, error=outcome.error.message)

    def _finish_uploads(self, uploader: StoreUploader) -> None:
        """Wait for the uploads, and try the newest checkpoint again where its upload failed. The status says what is
        not uploaded, also while that is not known: the rank may be killed. A Ctrl-C that comes now ends the uploads.
        """
        status, is_main = self._ctx.status, self._ctx.distributed.is_main_process
        stopped_by, progress = self._local_stop(), UploadProgress(uploader)
        pending = uploader.pending_upload()
        if pending is not None:
            status.not_uploaded, status.upload_command = "its upload had not ended", uploader.command(pending[0])

        def is_interrupted() -> bool:
            status.heartbeat()
            if is_main:
                progress.print_line()
            return not stopped_by and "SIGINT" in self._local_stop()

        with status.enter_phase("upload"):
            self._report_uploads(uploader.finish(is_interrupted))
            failure = uploader.failure
            status.not_uploaded = "" if failure is None or failure.error is None else failure.error.message
        if is_main:
            prune_checkpoints(self._ctx.run_dir.checkpoints, self._spec, status.step, ())

    def _local_stop(self) -> str:
        return local_stop_reason(self._ctx.run_dir, self._ctx.distributed.rank) or ""

    def _collect_for_export(self) -> None:
        """Where hosts share no disk, an export at the end needs the last checkpoint on the host of rank 0."""
        spec, distributed, folder = self._ctx.run_config.run.spec, self._ctx.distributed, self._ctx.run_dir.checkpoints
        if spec.launch.shared_disk or not spec.export.at_end:
            return
        newest = find_latest(folder, verify="manifest").checkpoint if distributed.is_main_process else None
        name = distributed.all_gather_object(newest.name if newest is not None else "")[0]
        if name:
            complete_on_hosts(folder / name, distributed, self._spec.upload_to, main_only=True)

    def _report_uploads(self, outcomes: list[UploadOutcome]) -> None:
        """A row for each upload that has ended."""
        for outcome in outcomes:
            fields = {"step": outcome.step, "url": outcome.url, "bytes": outcome.bytes}
            if outcome.error is not None or outcome.skipped:
                reason = outcome.skipped or (outcome.error.message if outcome.error else "")
                self._ctx.metrics.write("upload_failed", **fields, error=reason, skipped=bool(outcome.skipped))
            else:
                self._ctx.metrics.write("upload", **fields, seconds=round(outcome.seconds, 6))
            if outcome.error is not None and self._ctx.distributed.is_main_process:
                print_findings([outcome.error])

    def _print(self, finding: Finding | None) -> None:
        if finding is not None and self._ctx.distributed.is_main_process:
            print_findings([finding])


_LINE_SECONDS = 10.0


@dataclass(slots=True)
class UploadProgress:
    """Prints the progress of one uploader."""

    uploader: StoreUploader
    _printed_at: float = 0.0
    _moved: int = 0
    _moved_at: float = field(default_factory=time.monotonic)

    def print_line(self) -> None:
        """Print what this rank has uploaded, every ten seconds."""
        now, moved, pending = time.monotonic(), self.uploader.moved, self.uploader.pending_upload()
        if moved != self._moved:
            self._moved, self._moved_at = moved, now
        if pending is None or now - self._printed_at < _LINE_SECONDS:
            return
        self._printed_at = now
        folder, size = pending
        silent = now - self._moved_at
        bytes_moved = f"rank 0 has uploaded {format_bytes(moved)} of {format_bytes(size)}"
        text = f"waiting for the upload of {folder.name} to {self.uploader.url}: {bytes_moved}" + (
            f", and nothing for {format_seconds(silent)}" if silent > _LINE_SECONDS else ""
        )
        print(text, file=sys.stderr, flush=True)  # noqa: T201
