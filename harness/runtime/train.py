# SPDX-License-Identifier: Apache-2.0
"""The training loop, in one screen: no callbacks and no flags. Runs differ in the DeepSpeed JSON and `build_context`.

`worker.py` starts and ends the process.
"""

from __future__ import annotations

import time
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import set_seed

from harness.runtime import checkpoint, gc_control, plugin_loader
from harness.runtime.dataset.batch_prefetch import BatchPrefetcher
from harness.runtime.dataset.bin_packing import check_packing
from harness.runtime.dataset.distributed_preparation import prepare_on_node_leaders
from harness.runtime.dataset.sampler import EvalData, open_eval_data, open_train_data
from harness.runtime.distributed import AgreedUserError, Distributed
from harness.runtime.early_stopping import should_stop_early, update_early_stopping
from harness.runtime.engine import (
    apply_engine_patches,
    build_engine,
    check_ds_config,
    resolve_batch_geometry,
    resolve_topology,
)
from harness.runtime.engine_checks import EngineChecks
from harness.runtime.evaluate import evaluate
from harness.runtime.lr_schedule import check_schedule, total_steps
from harness.runtime.metrics import FORMAT_VERSION, MetricsWriter
from harness.runtime.models import build_model, load_config
from harness.runtime.nonfinite_policy import NonfinitePolicy, SkippedStep
from harness.runtime.parallel import tensor_parallel
from harness.runtime.pipeline import pipeline_module as pipelines
from harness.runtime.progress_display import ProgressDisplay, make_progress_display
from harness.runtime.rank_status import RankStatusWriter
from harness.runtime.run_config import RunConfig, RunDir
from harness.runtime.run_context import RunContext
from harness.runtime.shutdown import gather_stop_reason
from harness.runtime.step import Stepper, make_stepper
from harness.runtime.step_timer import StepTimer
from harness.runtime.telemetry.memory_phases import MemoryPhases
from harness.runtime.telemetry.nvme_io import count_nvme_io
from harness.runtime.telemetry.run_telemetry import Telemetry
from harness.runtime.tokenizer import load_tokenizer
from harness.runtime.train_state import TrainState
from harness.runtime.user_errors import print_findings


@dataclass(frozen=True, kw_only=True)
class TrainContext(RunContext):
    """Everything that a run holds while it trains."""

    stepper: Stepper
    prefetcher: BatchPrefetcher
    eval_data: EvalData | None
    saver: checkpoint.CheckpointSaver
    engine_checks: EngineChecks
    memory_phases: MemoryPhases


def build_context(
    run_config: RunConfig, run_dir: RunDir, distributed: Distributed, status: RankStatusWriter
) -> TrainContext:
    """Tokenizer, data, model, engine, in this order: cheap checks come first. A collective."""
    run, ds_config = run_config.run, run_config.ds_config
    distributed.call_or_fail_everywhere(lambda: check_ds_config(ds_config))
    distributed.call_or_fail_everywhere(lambda: plugin_loader.load_plugin(run.spec))
    topology = distributed.call_or_fail_everywhere(lambda: resolve_topology(run, distributed))
    geometry = distributed.call_or_fail_everywhere(
        lambda: resolve_batch_geometry(ds_config, topology.data_parallel_size)
    )
    tokenizer = distributed.call_or_fail_everywhere(lambda: load_tokenizer(run.spec.model, run.spec.data.chat_template))
    config = distributed.call_or_fail_everywhere(lambda: load_config(run.spec.model, tokenizer))
    distributed.call_or_fail_everywhere(lambda: check_packing(run, config))
    with status.enter_phase("data"):
        prepared_data, data_dir = prepare_on_node_leaders(run, tokenizer, run_dir.data, distributed)
    train_data = distributed.call_or_fail_everywhere(
        lambda: open_train_data(run, data_dir, prepared_data, geometry, topology.data_parallel_rank)
    )
    eval_data = distributed.call_or_fail_everywhere(
        lambda: open_eval_data(run, data_dir, prepared_data, geometry, topology.data_parallel_rank)
    )
    num_steps = total_steps(run.spec, train_data.steps_per_epoch)
    distributed.call_or_fail_everywhere(lambda: check_schedule(run.spec.scheduler, num_steps))
    count_nvme_io(ds_config)
    model = (
        pipelines.build_pipeline(run, config)
        if topology.pipeline_parallel_size > 1
        else build_model(run, ds_config, config)
    )
    engine_checks = EngineChecks(run_config, run_dir, distributed, topology, model, config)
    engine = build_engine(run, ds_config, model, num_steps)
    apply_engine_patches(engine, distributed, topology)
    engine_checks.on_engine_built(engine)
    # For dropout: every rank draws its own mask, but a tensor group one, since its ranks share the activations.
    set_seed(run.spec.train.seed + distributed.rank - topology.tensor_parallel_rank)
    metrics = MetricsWriter(run_dir.metrics if distributed.is_main_process else None)
    memory_phases = MemoryPhases(distributed, metrics)
    memory_phases.record("load", 0)
    return TrainContext(
        run_config=run_config,
        run_dir=run_dir,
        distributed=distributed,
        topology=topology,
        status=status,
        tokenizer=tokenizer,
        config=config,
        engine=engine,
        prepared_data=prepared_data,
        train_data=train_data,
        total_steps=num_steps,
        metrics=metrics,
        stepper=make_stepper(engine, distributed, topology, run),
        prefetcher=BatchPrefetcher(train_data, distributed.device),
        eval_data=eval_data,
        saver=checkpoint.CheckpointSaver.open(run_dir, distributed, run.spec.checkpoint),
        engine_checks=engine_checks,
        memory_phases=memory_phases,
    )


def train(
    ctx: TrainContext, resume: Path | None, allowed_changes: Collection[str] = (), attempt: int = 1
) -> TrainState:
    """Train until `ctx.total_steps` or a request to stop; save and evaluate when due. Returns the last state.

    `resume` is the checkpoint to resume from, `allowed_changes` are the keys of the spec that may differ from it,
    `attempt` counts the starts of this run.
    """
    state = checkpoint.restore_checkpoint(ctx, resume, allowed_changes) if resume else TrainState()
    if resume:
        ctx.memory_phases.record("resume", state.step)
    ctx.engine_checks.on_train_start(ctx, state)
    ctx.saver.protected = resume.resolve() if resume else None
    display = make_progress_display(ctx.total_steps, state.step, is_visible=ctx.distributed.is_main_process)
    telemetry = Telemetry(ctx, display)
    _write_run_header(ctx, state, resume, {"attempt": attempt, **telemetry.run_header_fields()})
    ctx.memory_phases.start_writing()
    try:
        with gc_control.disable_automatic_gc():
            return _train_loop(ctx, state, display, telemetry)
    finally:
        telemetry.flush_without_sync()
        ctx.prefetcher.close()
        display.close()


def _train_loop(ctx: TrainContext, state: TrainState, display: ProgressDisplay, telemetry: Telemetry) -> TrainState:
    """Every step. A save comes before an evaluation, so that an evaluation that fails loses nothing."""
    spec, run_dir, distributed, metrics = ctx.run_config.run.spec, ctx.run_dir, ctx.distributed, ctx.metrics
    policy = NonfinitePolicy(spec, ctx.engine, distributed, ctx.topology, ctx.train_data.geometry)
    # With early stopping the state depends on evaluations: then one comes before the save that holds it.
    has_early_stopping, early_stop_reason = spec.eval.early_stopping_patience is not None, None
    saved_step: int | None = None
    is_stopping = should_stop_early(spec.eval, state)
    if spec.eval.eval_on_start and state.step == 0:
        state, early_stop_reason = _evaluate_and_log(ctx, state, display, telemetry)
    while state.step < ctx.total_steps and not is_stopping:
        state = _run_and_log_step(ctx, state, display, policy, telemetry)
        gc_control.collect_between_steps(state.step)
        ctx.memory_phases.record("step", state.step, ctx.engine)
        ctx.status.update("running", step=state.step)
        eval_is_due = (
            spec.eval.eval_steps is not None and state.step % spec.eval.eval_steps == 0 and state.step < ctx.total_steps
        )
        if eval_is_due and has_early_stopping:
            state, early_stop_reason = _evaluate_and_log(ctx, state, display, telemetry)
        if spec.checkpoint.save_steps and state.step % spec.checkpoint.save_steps == 0:
            with telemetry.pause("checkpoint"), ctx.status.enter_phase("save"):
                saved_step = save_checkpoint(ctx, state)
        _report_saves(ctx, state, ctx.saver.poll_pending_save())
        stop_reason = gather_stop_reason(run_dir, distributed) or early_stop_reason
        is_stopping = stop_reason is not None
        if is_stopping:
            telemetry.flush()
            metrics.write("stop", step=state.step, reason=stop_reason)
            display.print_line(f"stopping at step {state.step}: {stop_reason}")
        elif eval_is_due and not has_early_stopping:
            state, _ = _evaluate_and_log(ctx, state, display, telemetry)
    ctx.engine_checks.on_train_end(state)
    telemetry.finish(state.step)
    if spec.checkpoint.save_at_end and saved_step != state.step:
        with ctx.status.enter_phase("save"):
            save_checkpoint(ctx, state, is_last=True)
    with ctx.status.enter_phase("save"):
        _report_saves(ctx, state, ctx.saver.wait_for_pending_save(), must_succeed=True)
    if not is_stopping:
        state, _ = _evaluate_and_log(ctx, state, display, telemetry)
    return state


def _run_and_log_step(
    ctx: TrainContext, state: TrainState, display: ProgressDisplay, policy: NonfinitePolicy, telemetry: Telemetry
) -> TrainState:
    """One step and its row in the metrics."""
    step, logging_steps = state.step + 1, ctx.run_config.run.spec.logging.logging_steps
    is_logged = step % logging_steps == 0 or step == ctx.total_steps
    telemetry.start_step(step)
    rate, position = ctx.engine.get_lr()[0], state.position
    losses, state, rows = run_step(ctx, state, telemetry.timer)
    state, skipped = policy.check_step(state, position, losses)
    telemetry.end_step(state, losses, rate, rows, skipped=skipped is not None, write_row=is_logged)
    ctx.engine_checks.on_step_end(state, rate, losses)
    if skipped:
        telemetry.flush()
        _report_skipped_step(ctx, state, skipped, display)
    return state


def _evaluate_and_log(
    ctx: TrainContext, state: TrainState, display: ProgressDisplay, telemetry: Telemetry
) -> tuple[TrainState, str | None]:
    """The state after an evaluation, and its reason to end the run early, if any."""
    with telemetry.pause("evaluation"), ctx.status.enter_phase("eval"):
        text, loss = run_evaluation(ctx, state)
        display.print_line(text)
    return (state, None) if loss is None else update_early_stopping(ctx.run_config.run.spec.eval, state, loss)


def _report_skipped_step(ctx: TrainContext, state: TrainState, skipped: SkippedStep, display: ProgressDisplay) -> None:
    """A row for a step that changed nothing. Raises UserError when it ends the run, after a last save."""
    ctx.metrics.write("skip", step=state.step, ranks=skipped.nonfinite_ranks or None, skipped=state.skipped)
    display.print_line(skipped.message)
    if skipped.error:
        if ctx.run_config.run.spec.checkpoint.save_at_end:
            with ctx.status.enter_phase("save"):
                save_checkpoint(ctx, state, is_last=True)
        raise skipped.error


def run_step(ctx: TrainContext, state: TrainState, timer: StepTimer) -> tuple[torch.Tensor, TrainState, np.ndarray]:
    """One optimizer step: this rank's part of the loss (see `Stepper.train_step`), the state after it, and the rows."""
    with timer.span("data"):
        batch = ctx.prefetcher.next_batch(state.position, prefetch=state.step + 1 < ctx.total_steps)
    ctx.engine_checks.on_batch(batch, ctx.train_data.data_parallel_rank)
    losses = ctx.stepper.train_step(batch.micro_batches, batch.num_targets, timer)
    state = state.advance(
        samples=ctx.train_data.geometry.global_batch_size, tokens=batch.num_tokens, position=batch.next_position
    )
    return losses, state, batch.row_indices


def run_evaluation(ctx: TrainContext, state: TrainState) -> tuple[str, float | None]:
    """Evaluate on the held-out data and write the row; returns a line for the display, and the loss."""
    if ctx.eval_data is None:
        return f"step {state.step}: nothing is held out to evaluate on (`data.eval_fraction` is 0)", None
    batches = ctx.run_config.run.spec.eval.max_batches
    plugin = plugin_loader.load_plugin(ctx.run_config.run.spec)
    plugin_metrics = plugin.metrics if plugin else None
    start = time.perf_counter()
    result = evaluate(
        ctx.engine, ctx.stepper, ctx.eval_data, ctx.distributed, batches, ctx.status.heartbeat, plugin_metrics
    )
    entropy = ctx.prepared_data.unigram_entropy
    ctx.metrics.write(
        "eval",
        step=state.step,
        loss=result.loss,
        perplexity=result.perplexity,
        tokens=result.tokens,
        unigram_entropy=entropy,
        seconds=round(time.perf_counter() - start, 6),
        **({"own": result.plugin_metrics} if result.plugin_metrics else {}),
    )
    ctx.saver.record_eval(state.step, loss=result.loss, perplexity=result.perplexity, tokens=result.tokens)
    entropy_note = "" if entropy is None else f" (unigram entropy {entropy:.3f})"
    return f"step {state.step}: held-out loss {result.loss:.3f}{entropy_note}", result.loss


def save_checkpoint(ctx: TrainContext, state: TrainState, *, is_last: bool = False) -> int:
    """Save a checkpoint; returns its step. The last save runs in the foreground and must succeed."""
    outcomes = ctx.saver.save(ctx, state, background=False if is_last else None)
    ctx.memory_phases.record("save", state.step)
    _report_saves(ctx, state, outcomes, must_succeed=is_last)
    return state.step


def _report_saves(
    ctx: TrainContext, state: TrainState, outcomes: list[checkpoint.SaveOutcome], *, must_succeed: bool = False
) -> None:
    """A row for each save that has ended. Raises UserError on all ranks when one failed and that ends the run."""
    for outcome in outcomes:
        path = str(outcome.folder.relative_to(ctx.run_dir.root))
        times = {"seconds": round(outcome.seconds, 6), "stall_seconds": round(outcome.stall_seconds, 6)}
        fields = {"step": outcome.step, "path": path, "bytes": outcome.bytes, "background": outcome.background, **times}
        if outcome.error is None:
            ctx.metrics.write("save", **fields)
            ctx.status.update(ctx.status.state, step=state.step, checkpoint=path)
            continue
        ctx.metrics.write("save_failed", **fields, error=outcome.error.message)
        if must_succeed or ctx.run_config.run.spec.checkpoint.on_save_error == "stop":
            raise AgreedUserError([outcome.error])
        if ctx.distributed.is_main_process:
            print_findings([outcome.error])


def count_parameters(ctx: TrainContext) -> int:
    """Elements of the whole model, however it is sharded. A collective."""
    if ctx.topology.pipeline_parallel_size > 1:
        return pipelines.count_parameters(ctx.engine.module, ctx.distributed, ctx.topology)
    return tensor_parallel.count_parameters(ctx.engine)


def _write_run_header(
    ctx: TrainContext, state: TrainState, resume: Path | None, telemetry_fields: dict[str, Any]
) -> None:
    run, geometry = ctx.run_config.run, ctx.train_data.geometry
    parameters = count_parameters(ctx)
    ctx.metrics.write(
        "run",
        format_version=FORMAT_VERSION,
        name=run.name,
        world=ctx.distributed.world_size,
        steps=ctx.total_steps,
        start_step=state.step,
        resumed_from=str(resume) if resume else None,
        parameters=parameters,
        micro_batch=geometry.micro_batch_size,
        accumulation=geometry.accumulation_steps,
        global_batch=geometry.global_batch_size,
        max_length=run.spec.data.max_length,
        train_tokens=ctx.prepared_data.train_tokens,
        eval_tokens=ctx.prepared_data.eval_tokens,
        records_left_out=ctx.prepared_data.skipped,
        records_cut=ctx.prepared_data.truncated,
        unigram_entropy=ctx.prepared_data.unigram_entropy,
        steps_per_epoch=ctx.train_data.steps_per_epoch,
        zero_stage=ctx.engine.zero_optimization_stage(),
        run_sha256=ctx.run_config.sha256,
        **telemetry_fields,
    )
    ctx.status.update("running", step=state.step)
