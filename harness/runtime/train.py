# SPDX-License-Identifier: Apache-2.0
"""The training loop: data, one optimizer step, the state after it; then what observes, saves, evaluates and ends.

With `step.py` (forward, backward, update) and `train_state.py` this is all that a step computes: nothing else changes a
weight. Runs differ in the DeepSpeed JSON and in `train_context.build_context`. `worker.py` starts and ends the process.
"""

from __future__ import annotations

from collections.abc import Collection
from contextlib import closing
from pathlib import Path

from harness.runtime import gc_control
from harness.runtime.checkpoint import restore_checkpoint
from harness.runtime.checkpoint.host_files import complete_on_hosts
from harness.runtime.checkpoint.store_fetch import fetch_from_store
from harness.runtime.early_stopping import early_stop_reason
from harness.runtime.eval_schedule import EvalSchedule
from harness.runtime.nonfinite_policy import NonfinitePolicy
from harness.runtime.save_schedule import SaveSchedule
from harness.runtime.shutdown import gather_stop_reason
from harness.runtime.step import MeanLoss
from harness.runtime.telemetry.run_telemetry import Telemetry
from harness.runtime.train_context import TrainContext
from harness.runtime.train_state import TrainState


def train(
    ctx: TrainContext, resume: Path | None = None, allowed_changes: Collection[str] = (), attempt: int = 1
) -> TrainState:
    """Train until `ctx.total_steps`, a request to stop or early stopping. Returns the last state; `ctx.status` has the
    outcome, and what is not uploaded. A collective.

    `resume` is the checkpoint to resume from, `allowed_changes` are the keys of the spec that may differ from it,
    `attempt` counts the starts of this run. Raises UserError on all ranks: for a checkpoint that cannot be restored, a
    save that failed, a step that was not finite.
    """
    with closing(ctx.prefetcher), Telemetry(ctx) as telemetry, SaveSchedule(ctx, telemetry, resume) as saves:
        if resume:
            ctx.status.set_activity("loading the checkpoint")
            fetch_from_store(ctx, resume)
            if not ctx.run_config.run.spec.launch.shared_disk:
                complete_on_hosts(resume, ctx.distributed, ctx.run_config.run.spec.checkpoint.upload_to)
        state = restore_checkpoint(ctx, resume, allowed_changes) if resume else TrainState()
        saves.start_uploads(resume)
        ctx.engine_checks.on_train_start(state, ctx.train_data.geometry, ctx.total_steps)
        telemetry.start_run(state, resume, attempt)
        ctx.status.activity = "taking the first step"
        ctx.status.update("running", step=state.step)
        with gc_control.disable_automatic_gc():
            state = _run_steps(ctx, state, resume, telemetry, saves)
        stopped_early = early_stop_reason(ctx.run_config.run.spec.eval, state) is not None
        ctx.status.outcome = "completed" if stopped_early or state.step >= ctx.total_steps else "stopped"
        return state


def _run_steps(
    ctx: TrainContext, state: TrainState, resume: Path | None, telemetry: Telemetry, saves: SaveSchedule
) -> TrainState:
    """Every step from `state` on. Returns the last state."""
    spec, geometry = ctx.run_config.run.spec, ctx.train_data.geometry
    evals, nonfinite = EvalSchedule(ctx, telemetry, saves), NonfinitePolicy(ctx, reads_late=telemetry.lag_steps > 0)
    state, stop_reason = evals.evaluate_at_start(state, resume)
    while state.step < ctx.total_steps and stop_reason is None:
        step, position = state.step + 1, state.position
        telemetry.start_step(step)

        # Data: loaded by a thread during the step before; a pure function of the position.
        with telemetry.timer.span("data"):
            batch = ctx.prefetcher.next_batch(position, prefetch=step < ctx.total_steps)
        ctx.engine_checks.on_batch(batch, ctx.train_data.data_parallel_rank)

        # Forward, backward and update, of one global batch; `losses` is this rank's part of its loss.
        learning_rate = ctx.engine.get_lr()[0]
        losses = ctx.stepper.train_step(batch.micro_batches, batch.num_targets, telemetry.timer)
        state = state.advance(
            samples=geometry.global_batch_size,
            tokens=batch.num_tokens,
            predicted_tokens=batch.num_targets,
            position=batch.next_position,
        )

        # NaN and infinity: a step that DeepSpeed skipped is counted, one that was taken with such a loss ends the run.
        # The loss is read where it is logged, and before the weights are saved or evaluated.
        state, skipped = nonfinite.check_step(state, position, losses)
        is_logged = step % spec.logging.logging_steps == 0 or step == ctx.total_steps
        read_loss_now = saves.is_due(step) or evals.is_due(step) or step == ctx.total_steps
        mean_loss = MeanLoss(losses, ctx.distributed, geometry) if is_logged or read_loss_now else None
        nonfinite.check_loss(step, None if skipped else mean_loss, at_once=read_loss_now)

        # Observe. The line of a step is written a step late on a device, so that nothing waits for it.
        telemetry.end_step(state, batch, learning_rate, mean_loss if is_logged else None)
        ctx.engine_checks.on_step_end(state, learning_rate, losses)
        if skipped:
            telemetry.write_skip(state, skipped)
            if skipped.error is not None:
                saves.save_last(state)
                raise skipped.error
        gc_control.collect_between_steps(step)
        telemetry.record_memory("step", step)
        ctx.status.activity = ""
        ctx.status.update("running", step=step)

        # Save before evaluating: an evaluation that fails loses nothing. Then stop, or evaluate; all ranks alike.
        if saves.is_due(step):
            saves.save(state)
        saves.report_finished(state)
        stop_reason = gather_stop_reason(ctx.run_dir, ctx.distributed, saves.stop_reason())
        if stop_reason is not None and not read_loss_now and not skipped:  # the last save follows
            nonfinite.check_loss(step, mean_loss or MeanLoss(losses, ctx.distributed, geometry), at_once=True)
        elif stop_reason is None and evals.is_due(step):
            state, stop_reason = evals.evaluate(state)

    if stop_reason is not None:
        telemetry.write_stop(state.step, stop_reason)
    ctx.engine_checks.on_train_end(state)
    telemetry.finish_steps(state.step)
    saves.save_last(state)
    if stop_reason is None:
        state, _ = evals.evaluate(state)
    return state
