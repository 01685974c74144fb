"""The training loop, in one screen: no callbacks and no flags. What varies is in the DeepSpeed JSON and in `build`.

Starting and ending the process is in `main.py`.
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
from harness.runtime.dataset.preparation import PreparedData
from harness.runtime.dataset.sampler import (
    EvalData,
    TrainData,
    check_packing,
    open_eval_data,
    open_train_data,
    prepare_on_node_leaders,
)
from harness.runtime.distributed import AgreedUserError, Distributed
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
from harness.runtime.metrics import FORMAT_VERSION, MetricsWriter, StepTimer
from harness.runtime.models import build_model, load_config
from harness.runtime.nonfinite_policy import NonfinitePolicy, SkippedStep, should_stop_early, update_early_stopping
from harness.runtime.parallel import tensor_parallel
from harness.runtime.pipeline import pipeline_module as pipelines
from harness.runtime.progress_display import ProgressDisplay, make_progress_display
from harness.runtime.rank_status import RankStatusWriter
from harness.runtime.run_config import RunConfig, RunDir
from harness.runtime.shutdown import gather_stop_reason
from harness.runtime.step import Stepper, make_stepper
from harness.runtime.telemetry.memory_phases import MemoryPhases
from harness.runtime.telemetry.nvme_io import count_nvme_io
from harness.runtime.telemetry.run_telemetry import Telemetry
from harness.runtime.tokenizer import load_tokenizer
from harness.runtime.topology import Topology
from harness.runtime.train_state import TrainState
from harness.runtime.user_errors import print_findings


@dataclass(frozen=True)
class TrainContext:
    """Everything that a run holds while it trains."""

    run_config: RunConfig
    run_dir: RunDir
    distributed: Distributed
    topology: Topology
    status: RankStatusWriter
    tokenizer: Any
    config: Any
    """The `transformers` configuration of the model."""
    engine: Any
    stepper: Stepper
    prepared_data: PreparedData
    train_data: TrainData
    prefetcher: BatchPrefetcher
    eval_data: EvalData | None
    total_steps: int
    metrics: MetricsWriter
    saver: checkpoint.CheckpointSaver
    engine_checks: EngineChecks
    memory_phases: MemoryPhases


def build_context(
    run_config: RunConfig, run_dir: RunDir, distributed: Distributed, status: RankStatusWriter
) -> TrainContext:
    """Tokenizer, data, model, engine, in this order: what can be refused cheaply is looked at first."""
    run, ds_config = run_config.run, run_config.ds_config
    distributed.call_or_fail_everywhere(lambda: check_ds_config(ds_config))
    distributed.call_or_fail_everywhere(lambda: plugin_loader.load_plugin(run.spec))
    topology = distributed.call_or_fail_everywhere(lambda: resolve_topology(run, distributed))
    shape = distributed.call_or_fail_everywhere(lambda: resolve_batch_geometry(ds_config, topology.data_parallel_size))
    tokenizer = distributed.call_or_fail_everywhere(lambda: load_tokenizer(run.spec.model, run.spec.data.chat_template))
    config = distributed.call_or_fail_everywhere(lambda: load_config(run.spec.model, tokenizer))
    distributed.call_or_fail_everywhere(lambda: check_packing(run, config))
    with status.enter_phase("data"):
        prepared, tokens = prepare_on_node_leaders(run, tokenizer, run_dir.data, distributed)
    train = distributed.call_or_fail_everywhere(
        lambda: open_train_data(run, tokens, prepared, shape, topology.data_parallel_rank)
    )
    held_out = distributed.call_or_fail_everywhere(
        lambda: open_eval_data(run, tokens, prepared, shape, topology.data_parallel_rank)
    )
    steps = total_steps(run.spec, train.steps_per_epoch)
    distributed.call_or_fail_everywhere(lambda: check_schedule(run.spec.scheduler, steps))
    count_nvme_io(ds_config)
    model = (
        pipelines.build_pipeline(run, config)
        if topology.pipeline_parallel_size > 1
        else build_model(run, ds_config, config)
    )
    engine_checks = EngineChecks(run_config, run_dir, distributed, topology, model, config)
    engine = build_engine(run, ds_config, model, steps)
    apply_engine_patches(engine, distributed, topology)
    engine_checks.on_engine_built(engine)
    # From here on, dropout: another mask on every rank, but one in a tensor group, which has one stream of activations.
    set_seed(run.spec.train.seed + distributed.rank - topology.tensor_parallel_rank)
    metrics = MetricsWriter(run_dir.metrics if distributed.is_main_process else None)
    phases = MemoryPhases(distributed, metrics)
    phases.record("load", 0)
    return TrainContext(
        run_config,
        run_dir,
        distributed,
        topology,
        status,
        tokenizer,
        config,
        engine,
        make_stepper(engine, distributed, topology, run),
        prepared,
        train,
        BatchPrefetcher(train, distributed.device),
        held_out,
        steps,
        metrics,
        checkpoint.CheckpointSaver.open(run_dir, distributed, run.spec.checkpoint),
        engine_checks,
        phases,
    )


def train(
    job: TrainContext, resume: Path | None, allowed_changes: Collection[str] = (), attempt: int = 1
) -> TrainState:
    """Train until `job.steps` or until asked to stop; saves and evaluates when due. Returns the last state.

    `allowed` are the keys that may differ from those of the checkpoint to go on from, `attempt` is which start it is.
    """
    state = checkpoint.restore_checkpoint(job, resume, allowed_changes) if resume else TrainState()
    if resume:
        job.memory_phases.record("resume", state.step)
    job.engine_checks.on_train_start(job, state)
    job.saver.protected = resume.resolve() if resume else None
    screen = make_progress_display(job.total_steps, state.step, is_visible=job.distributed.is_main_process)
    telemetry = Telemetry(job, screen)
    _write_run_header(job, state, resume, {"attempt": attempt, **telemetry.run_header_fields()})
    job.memory_phases.start_writing()
    try:
        with gc_control.disable_automatic_gc():
            return _train_loop(job, state, screen, telemetry)
    finally:
        telemetry.flush_without_sync()
        job.prefetcher.close()
        screen.close()


def _train_loop(job: TrainContext, state: TrainState, screen: ProgressDisplay, telemetry: Telemetry) -> TrainState:
    """Each step; a save comes before an evaluation, so that what goes wrong in the latter loses nothing."""
    spec, run_dir, ranks, metrics = job.run_config.run.spec, job.run_dir, job.distributed, job.metrics
    policy = NonfinitePolicy(spec, job.engine, ranks, job.topology, job.train_data.geometry)
    # Where patience ends the run, the state depends on evaluations: then one comes before the save that holds it.
    judged, over = spec.eval.early_stopping_patience is not None, None
    saved: int | None = None
    stopping = should_stop_early(spec.eval, state)
    if spec.eval.eval_on_start and state.step == 0:
        state, over = _run_early_stopping_evaluation(job, state, screen, telemetry)
    while state.step < job.total_steps and not stopping:
        state = _run_and_log_step(job, state, screen, policy, telemetry)
        gc_control.collect_between_steps(state.step)
        job.memory_phases.record("step", state.step, job.engine)
        job.status.update("running", step=state.step)
        due = (
            spec.eval.eval_steps is not None and state.step % spec.eval.eval_steps == 0 and state.step < job.total_steps
        )
        if due and judged:
            state, over = _run_early_stopping_evaluation(job, state, screen, telemetry)
        if spec.checkpoint.save_steps and state.step % spec.checkpoint.save_steps == 0:
            with telemetry.pause("checkpoint"), job.status.enter_phase("save"):
                saved = save_checkpoint(job, state)
        _report_saves(job, state, job.saver.poll_pending_save())
        why = gather_stop_reason(run_dir, ranks) or over
        stopping = why is not None
        if stopping:
            telemetry.flush()
            metrics.write("stop", step=state.step, reason=why)
            screen.print_line(f"stopping at step {state.step}: {why}")
        elif due and not judged:
            state, _ = _run_early_stopping_evaluation(job, state, screen, telemetry)
    job.engine_checks.on_train_end(state)
    telemetry.finish(state.step)
    if spec.checkpoint.save_at_end and saved != state.step:
        with job.status.enter_phase("save"):
            save_checkpoint(job, state, is_last=True)
    with job.status.enter_phase("save"):
        _report_saves(job, state, job.saver.wait_for_pending_save(), must_succeed=True)
    if not stopping:
        state, _ = _run_early_stopping_evaluation(job, state, screen, telemetry)
    return state


def _run_and_log_step(
    job: TrainContext, state: TrainState, screen: ProgressDisplay, policy: NonfinitePolicy, telemetry: Telemetry
) -> TrainState:
    """One step and its line."""
    logged = (state.step + 1) % job.run_config.run.spec.logging.logging_steps == 0 or state.step + 1 == job.total_steps
    telemetry.start_step(state.step + 1)
    rate, before = job.engine.get_lr()[0], state.position
    losses, state, rows = _run_optimizer_step(job, state, telemetry.timer)
    state, skipped = policy.check_step(state, before, losses)
    telemetry.end_step(state, losses, rate, rows, skipped=skipped is not None, write_row=logged)
    job.engine_checks.on_step_end(state, rate, losses)
    if skipped:
        telemetry.flush()
        _report_skipped_step(job, state, skipped, screen)
    return state


def _run_early_stopping_evaluation(
    job: TrainContext, state: TrainState, screen: ProgressDisplay, telemetry: Telemetry
) -> tuple[TrainState, str | None]:
    """The state with what an evaluation says, and the reason to end early if it gives one."""
    with telemetry.pause("evaluation"), job.status.enter_phase("eval"):
        text, loss = run_evaluation(job, state)
        screen.print_line(text)
    return (state, None) if loss is None else update_early_stopping(job.run_config.run.spec.eval, state, loss)


def _report_skipped_step(job: TrainContext, state: TrainState, skipped: SkippedStep, screen: ProgressDisplay) -> None:
    """A line for a step that changed nothing. Raises Refused when it ends the run, which keeps what it has first."""
    job.metrics.write("skip", step=state.step, ranks=skipped.nonfinite_ranks or None, skipped=state.skipped)
    screen.print_line(skipped.message)
    if skipped.error:
        if job.run_config.run.spec.checkpoint.save_at_end:
            with job.status.enter_phase("save"):
                save_checkpoint(job, state, is_last=True)
        raise skipped.error


def run_step(job: TrainContext, state: TrainState, timer: StepTimer) -> tuple[torch.Tensor, TrainState]:
    """One optimizer step; returns this rank's part of the loss (see `Stepper.train`), and the state after it."""
    return _run_optimizer_step(job, state, timer)[:2]


def _run_optimizer_step(
    job: TrainContext, state: TrainState, timer: StepTimer
) -> tuple[torch.Tensor, TrainState, np.ndarray]:
    with timer.span("data"):
        drawn = job.prefetcher.next_batch(state.position, prefetch=state.step + 1 < job.total_steps)
    job.engine_checks.on_batch(drawn, job.train_data.data_parallel_rank)
    losses = job.stepper.train_step(drawn.micro_batches, drawn.num_targets, timer)
    after = state.advance(
        samples=job.train_data.geometry.global_batch_size, tokens=drawn.num_tokens, position=drawn.next_position
    )
    return losses, after, drawn.row_indices


def run_evaluation(job: TrainContext, state: TrainState) -> tuple[str, float | None]:
    """Evaluate on the held-out part and write the line; returns what to say, and the loss."""
    if job.eval_data is None:
        return f"step {state.step}: nothing is held out to evaluate on (`data.eval_fraction` is 0)", None
    batches = job.run_config.run.spec.eval.max_batches
    plugin = plugin_loader.load_plugin(job.run_config.run.spec)
    own = plugin.metrics if plugin else None
    began = time.perf_counter()
    result = evaluate(job.engine, job.stepper, job.eval_data, job.distributed, batches, job.status.heartbeat, own)
    entropy = job.prepared_data.unigram_entropy
    job.metrics.write(
        "eval",
        step=state.step,
        loss=result.loss,
        perplexity=result.perplexity,
        tokens=result.tokens,
        unigram_entropy=entropy,
        seconds=round(time.perf_counter() - began, 6),
        **({"own": result.plugin_metrics} if result.plugin_metrics else {}),
    )
    job.saver.record_eval(state.step, loss=result.loss, perplexity=result.perplexity, tokens=result.tokens)
    beside = "" if entropy is None else f" (unigram entropy {entropy:.3f})"
    return f"step {state.step}: held-out loss {result.loss:.3f}{beside}", result.loss


def save_checkpoint(job: TrainContext, state: TrainState, *, is_last: bool = False) -> int:
    """Save a checkpoint; returns its step. The last one is waited for, and must succeed."""
    outcomes = job.saver.save(job, state, background=False if is_last else None)
    job.memory_phases.record("save", state.step)
    _report_saves(job, state, outcomes, must_succeed=is_last)
    return state.step


def _report_saves(
    job: TrainContext, state: TrainState, outcomes: list[checkpoint.SaveOutcome], *, must_succeed: bool = False
) -> None:
    """A line for each save that has ended. Raises Refused on all ranks when one failed and that ends the run."""
    for outcome in outcomes:
        path = str(outcome.folder.relative_to(job.run_dir.root))
        times = {"seconds": round(outcome.seconds, 6), "stall_seconds": round(outcome.stall_seconds, 6)}
        line = {"step": outcome.step, "path": path, "bytes": outcome.bytes, "background": outcome.background, **times}
        if outcome.error is None:
            job.metrics.write("save", **line)
            job.status.update(job.status.state, step=state.step, checkpoint=path)
            continue
        job.metrics.write("save_failed", **line, error=outcome.error.message)
        if must_succeed or job.run_config.run.spec.checkpoint.on_save_error == "stop":
            raise AgreedUserError([outcome.error])
        if job.distributed.is_main_process:
            print_findings([outcome.error])


def count_parameters(job: TrainContext) -> int:
    """Elements of the whole model, however it is cut. A collective."""
    if job.topology.pipeline_parallel_size > 1:
        return pipelines.count_parameters(job.engine.module, job.distributed, job.topology)
    return tensor_parallel.count_parameters(job.engine)


def _write_run_header(job: TrainContext, state: TrainState, resume: Path | None, measured: dict[str, Any]) -> None:
    run, shape = job.run_config.run, job.train_data.geometry
    parameters = count_parameters(job)
    job.metrics.write(
        "run",
        format_version=FORMAT_VERSION,
        name=run.name,
        world=job.distributed.world_size,
        steps=job.total_steps,
        start_step=state.step,
        resumed_from=str(resume) if resume else None,
        parameters=parameters,
        micro_batch=shape.micro_batch_size,
        accumulation=shape.accumulation_steps,
        global_batch=shape.global_batch_size,
        max_length=run.spec.data.max_length,
        train_tokens=job.prepared_data.train_tokens,
        eval_tokens=job.prepared_data.eval_tokens,
        records_left_out=job.prepared_data.skipped,
        records_cut=job.prepared_data.truncated,
        unigram_entropy=job.prepared_data.unigram_entropy,
        steps_per_epoch=job.train_data.steps_per_epoch,
        zero_stage=job.engine.zero_optimization_stage(),
        run_sha256=job.run_config.sha256,
        **measured,
    )
    job.status.update("running", step=state.step)
