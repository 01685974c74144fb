# SPDX-License-Identifier: Apache-2.0
"""The saves of a run: when one is due, and what is reported of each."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import Self

from harness.runtime.checkpoint import CheckpointSaver, SaveOutcome
from harness.runtime.distributed import AgreedUserError
from harness.runtime.telemetry.run_telemetry import Telemetry
from harness.runtime.train_context import TrainContext
from harness.runtime.train_state import TrainState
from harness.runtime.user_errors import print_findings


class SaveSchedule:
    """`checkpoint` of the spec for one run. Every method is a collective: all ranks call it at the same step.

    Each raises AgreedUserError for a save that failed, where that ends the run. As a context it waits for the save of
    the thread when an error ends the run on all ranks: a checkpoint of an earlier step is not lost with it.
    """

    def __init__(self, ctx: TrainContext, telemetry: Telemetry, resume: Path | None) -> None:
        """`resume` is the checkpoint that the run starts from: it is not overwritten."""
        self._ctx, self._telemetry, self._spec = ctx, telemetry, ctx.run_config.run.spec.checkpoint
        self._saver = CheckpointSaver.open(ctx.run_dir, ctx.distributed, self._spec)
        self._saver.protected = resume.resolve() if resume else None
        self._saved_step: int | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not isinstance(error, AgreedUserError):
            return  # other ranks may be elsewhere, and the thread waits for theirs
        with self._ctx.status.enter_phase("save"):
            outcomes = self._saver.wait_for_pending_save()
        for outcome in outcomes:
            self._write_row(outcome, self._ctx.status.step)
            self._print_error(outcome)

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

    def save_last(self, state: TrainState) -> None:
        """The end of training: save, unless that is done or `checkpoint.save_at_end` is off, and wait for all writes.
        These must succeed.
        """
        with self._telemetry.pause("checkpoint"):
            if self._spec.save_at_end and self._saved_step != state.step:
                self._save(state, background=False, must_succeed=True)
            self._report(state, self._saver.wait_for_pending_save(), must_succeed=True)

    def record_eval(self, state: TrainState, *, loss: float, perplexity: float, tokens: int) -> None:
        """Record an evaluation, which `state` counts: next to the checkpoints, and in that of its step."""
        self._saver.record_eval(state, loss=loss, perplexity=perplexity, tokens=tokens)

    def start_evals(self, step: int, resume: Path | None) -> None:
        """The run starts from this step of `resume`: keep the evaluations up to it, since later ones are run again."""
        self._saver.start_evals(step, resume)

    def _save(self, state: TrainState, *, background: bool, must_succeed: bool = False) -> None:
        outcomes = self._saver.save(self._ctx, state, background=background)
        self._saved_step = state.step
        self._telemetry.record_memory("save", state.step)
        self._report(state, outcomes, must_succeed=must_succeed)

    def _report(self, state: TrainState, outcomes: list[SaveOutcome], *, must_succeed: bool = False) -> None:
        """A row for each save that has ended."""
        for outcome in outcomes:
            self._write_row(outcome, state.step)
            if outcome.error is not None and (must_succeed or self._spec.on_save_error == "stop"):
                raise AgreedUserError([outcome.error])
            self._print_error(outcome)

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
        }
        if outcome.error is None:
            metrics.write("save", **fields)
            status.update(status.state, step=step, checkpoint=path)
        else:
            metrics.write("save_failed", **fields, error=outcome.error.message)

    def _print_error(self, outcome: SaveOutcome) -> None:
        if outcome.error is not None and self._ctx.distributed.is_main_process:
            print_findings([outcome.error])
