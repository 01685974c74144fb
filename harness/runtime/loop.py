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

from harness.runtime import checkpoint, garbage, plugins, tensor_parallel
from harness.runtime.attest import Attestation
from harness.runtime.corpus.prepare import Prepared
from harness.runtime.data import EvalData, TrainData, check_packing, open_eval, open_train, prepare_together
from harness.runtime.drawing import DrawnAhead
from harness.runtime.engine import batch_shape, build_engine, find_place, mend_engine, refuse_unsupported
from harness.runtime.evaluate import evaluate
from harness.runtime.metrics import FORMAT_VERSION, Metrics, Stopwatch
from harness.runtime.models import build_model, load_config
from harness.runtime.pipeline import module as pipelines
from harness.runtime.policies import NonfinitePolicy, Skipped, judge_evaluation, patience_is_out
from harness.runtime.progress import Display, display
from harness.runtime.ranks import Ranks, RefusedByAll
from harness.runtime.refusals import say
from harness.runtime.rundir import Orders, RunDir
from harness.runtime.schedule import check_schedule, total_steps
from harness.runtime.state import State
from harness.runtime.status import Status
from harness.runtime.stepping import Stepper, make_stepper
from harness.runtime.stopping import agree_to_stop
from harness.runtime.telemetry.phases import Phases
from harness.runtime.telemetry.swapping import watch_swapping
from harness.runtime.telemetry.telemetry import Telemetry
from harness.runtime.tokens import load_tokenizer
from harness.runtime.topology import Topology


@dataclass(frozen=True)
class Job:
    """Everything that a run holds while it trains."""

    orders: Orders
    run_dir: RunDir
    ranks: Ranks
    topology: Topology
    status: Status
    tokenizer: Any
    config: Any
    """The `transformers` configuration of the model."""
    engine: Any
    stepper: Stepper
    prepared: Prepared
    train: TrainData
    drawing: DrawnAhead
    held_out: EvalData | None
    steps: int
    metrics: Metrics
    saver: checkpoint.Saver
    attestation: Attestation
    phases: Phases


def build(orders: Orders, run_dir: RunDir, ranks: Ranks, status: Status) -> Job:
    """Tokenizer, data, model, engine, in this order: what can be refused cheaply is looked at first."""
    run, ds_config = orders.run, orders.ds_config
    ranks.together(lambda: refuse_unsupported(ds_config))
    ranks.together(lambda: plugins.load(run.spec))
    topology = ranks.together(lambda: find_place(run, ranks))
    shape = ranks.together(lambda: batch_shape(ds_config, topology.data_size))
    tokenizer = ranks.together(lambda: load_tokenizer(run.spec.model, run.spec.data.chat_template))
    config = ranks.together(lambda: load_config(run.spec.model, tokenizer))
    ranks.together(lambda: check_packing(run, config))
    with status.during("data"):
        prepared, tokens = prepare_together(run, tokenizer, run_dir.data, ranks)
    train = ranks.together(lambda: open_train(run, tokens, prepared, shape, topology.data_rank))
    held_out = ranks.together(lambda: open_eval(run, tokens, prepared, shape, topology.data_rank))
    steps = total_steps(run.spec, train.steps_per_epoch)
    ranks.together(lambda: check_schedule(run.spec.scheduler, steps))
    watch_swapping(ds_config)
    model = pipelines.build_pipeline(run, config) if topology.pipeline_size > 1 else build_model(run, ds_config, config)
    attestation = Attestation(orders, run_dir, ranks, topology, model, config)
    engine = build_engine(run, ds_config, model, steps)
    mend_engine(engine, ranks, topology)
    attestation.built(engine)
    # From here on, dropout: another mask on every rank, but one in a tensor group, which has one stream of activations.
    set_seed(run.spec.train.seed + ranks.rank - topology.tensor_rank)
    metrics = Metrics(run_dir.metrics if ranks.is_first else None)
    phases = Phases(ranks, metrics)
    phases.over("load", 0)
    return Job(
        orders,
        run_dir,
        ranks,
        topology,
        status,
        tokenizer,
        config,
        engine,
        make_stepper(engine, ranks, topology, run),
        prepared,
        train,
        DrawnAhead(train, ranks.device),
        held_out,
        steps,
        metrics,
        checkpoint.Saver.open(run_dir, ranks, run.spec.checkpoint),
        attestation,
        phases,
    )


def train(job: Job, resume: Path | None, allowed: Collection[str] = (), attempt: int = 1) -> State:
    """Train until `job.steps` or until asked to stop; saves and evaluates when due. Returns the last state.

    `allowed` are the keys that may differ from those of the checkpoint to go on from, `attempt` is which start it is.
    """
    state = checkpoint.restore(job, resume, allowed) if resume else State()
    if resume:
        job.phases.over("resume", state.step)
    job.attestation.begin(job, state)
    job.saver.protected = resume.resolve() if resume else None
    screen = display(job.steps, state.step, shown=job.ranks.is_first)
    telemetry = Telemetry(job, screen)
    _write_start(job, state, resume, {"attempt": attempt, **telemetry.facts()})
    job.phases.begin()
    try:
        with garbage.kept_out_of_steps():
            return _train(job, state, screen, telemetry)
    finally:
        telemetry.abandon()
        job.drawing.close()
        screen.close()


def _train(job: Job, state: State, screen: Display, telemetry: Telemetry) -> State:
    """Each step; a save comes before an evaluation, so that what goes wrong in the latter loses nothing."""
    spec, run_dir, ranks, metrics = job.orders.run.spec, job.run_dir, job.ranks, job.metrics
    policy = NonfinitePolicy(spec, job.engine, ranks, job.topology, job.train.shape)
    # Where patience ends the run, the state depends on evaluations: then one comes before the save that holds it.
    judged, over = spec.eval.early_stopping_patience is not None, None
    saved: int | None = None
    stopping = patience_is_out(spec.eval, state)
    if spec.eval.eval_on_start and state.step == 0:
        state, over = _evaluate(job, state, screen, telemetry)
    while state.step < job.steps and not stopping:
        state = _step(job, state, screen, policy, telemetry)
        garbage.between_steps(state.step)
        job.phases.over("step", state.step, job.engine)
        job.status.set("running", step=state.step)
        due = spec.eval.eval_steps is not None and state.step % spec.eval.eval_steps == 0 and state.step < job.steps
        if due and judged:
            state, over = _evaluate(job, state, screen, telemetry)
        if spec.checkpoint.save_steps and state.step % spec.checkpoint.save_steps == 0:
            with telemetry.paused("checkpoint"), job.status.during("save"):
                saved = save(job, state)
        _tell_saved(job, state, job.saver.settle())
        why = agree_to_stop(run_dir, ranks) or over
        stopping = why is not None
        if stopping:
            telemetry.flush()
            metrics.write("stop", step=state.step, reason=why)
            screen.say(f"stopping at step {state.step}: {why}")
        elif due and not judged:
            state, _ = _evaluate(job, state, screen, telemetry)
    job.attestation.finish(state)
    telemetry.finish(state.step)
    if spec.checkpoint.save_at_end and saved != state.step:
        with job.status.during("save"):
            save(job, state, last=True)
    with job.status.during("save"):
        _tell_saved(job, state, job.saver.join(), must=True)
    if not stopping:
        state, _ = _evaluate(job, state, screen, telemetry)
    return state


def _step(job: Job, state: State, screen: Display, policy: NonfinitePolicy, telemetry: Telemetry) -> State:
    """One step and its line."""
    logged = (state.step + 1) % job.orders.run.spec.logging.logging_steps == 0 or state.step + 1 == job.steps
    telemetry.begin(state.step + 1)
    rate, before = job.engine.get_lr()[0], state.position
    losses, state, rows = _take_step(job, state, telemetry.watch)
    state, skipped = policy.after(state, before, losses)
    telemetry.end(state, losses, rate, rows, skipped=skipped is not None, logged=logged)
    job.attestation.after(state, rate, losses)
    if skipped:
        telemetry.flush()
        _tell_skipped(job, state, skipped, screen)
    return state


def _evaluate(job: Job, state: State, screen: Display, telemetry: Telemetry) -> tuple[State, str | None]:
    """The state with what an evaluation says, and the reason to end early if it gives one."""
    with telemetry.paused("evaluation"), job.status.during("eval"):
        text, loss = run_evaluation(job, state)
        screen.say(text)
    return (state, None) if loss is None else judge_evaluation(job.orders.run.spec.eval, state, loss)


def _tell_skipped(job: Job, state: State, skipped: Skipped, screen: Display) -> None:
    """A line for a step that changed nothing. Raises Refused when it ends the run, which keeps what it has first."""
    job.metrics.write("skip", step=state.step, ranks=skipped.ranks or None, skipped=state.skipped)
    screen.say(skipped.text)
    if skipped.refused:
        if job.orders.run.spec.checkpoint.save_at_end:
            with job.status.during("save"):
                save(job, state, last=True)
        raise skipped.refused


def one_step(job: Job, state: State, watch: Stopwatch) -> tuple[torch.Tensor, State]:
    """One optimizer step; returns this rank's part of the loss (see `Stepper.train`), and the state after it."""
    return _take_step(job, state, watch)[:2]


def _take_step(job: Job, state: State, watch: Stopwatch) -> tuple[torch.Tensor, State, np.ndarray]:
    with watch.part("data"):
        drawn = job.drawing.step(state.position, ahead=state.step + 1 < job.steps)
    job.attestation.drawn(drawn, job.train.rank)
    losses = job.stepper.train(drawn.micro_batches, drawn.predicted, watch)
    after = state.advance(samples=job.train.shape.total, tokens=drawn.tokens, position=drawn.position)
    return losses, after, drawn.rows


def run_evaluation(job: Job, state: State) -> tuple[str, float | None]:
    """Evaluate on the held-out part and write the line; returns what to say, and the loss."""
    if job.held_out is None:
        return f"step {state.step}: nothing is held out to evaluate on (`data.eval_fraction` is 0)", None
    batches = job.orders.run.spec.eval.max_batches
    plugin = plugins.load(job.orders.run.spec)
    own = plugin.metrics if plugin else None
    began = time.perf_counter()
    result = evaluate(job.engine, job.stepper, job.held_out, job.ranks, batches, job.status.beat, own)
    entropy = job.prepared.unigram_entropy
    job.metrics.write(
        "eval",
        step=state.step,
        loss=result.loss,
        perplexity=result.perplexity,
        tokens=result.tokens,
        unigram_entropy=entropy,
        seconds=round(time.perf_counter() - began, 6),
        **({"own": result.own} if result.own else {}),
    )
    job.saver.note(state.step, loss=result.loss, perplexity=result.perplexity, tokens=result.tokens)
    beside = "" if entropy is None else f" (unigram entropy {entropy:.3f})"
    return f"step {state.step}: held-out loss {result.loss:.3f}{beside}", result.loss


def save(job: Job, state: State, *, last: bool = False) -> int:
    """Save a checkpoint; returns its step. The last one is waited for, and must succeed."""
    outcomes = job.saver.save(job, state, background=False if last else None)
    job.phases.over("save", state.step)
    _tell_saved(job, state, outcomes, must=last)
    return state.step


def _tell_saved(job: Job, state: State, outcomes: list[checkpoint.Outcome], *, must: bool = False) -> None:
    """A line for each save that has ended. Raises Refused on all ranks when one failed and that ends the run."""
    for outcome in outcomes:
        path = str(outcome.folder.relative_to(job.run_dir.root))
        times = {"seconds": round(outcome.seconds, 6), "stall_seconds": round(outcome.stalled, 6)}
        line = {"step": outcome.step, "path": path, "bytes": outcome.bytes, "background": outcome.background, **times}
        if outcome.error is None:
            job.metrics.write("save", **line)
            job.status.set(job.status.state, step=state.step, checkpoint=path)
            continue
        job.metrics.write("save_failed", **line, error=outcome.error.message)
        if must or job.orders.run.spec.checkpoint.on_save_error == "stop":
            raise RefusedByAll([outcome.error])
        if job.ranks.is_first:
            say([outcome.error])


def num_parameters(job: Job) -> int:
    """Elements of the whole model, however it is cut. A collective."""
    if job.topology.pipeline_size > 1:
        return pipelines.num_parameters(job.engine.module, job.ranks, job.topology)
    return tensor_parallel.num_parameters(job.engine)


def _write_start(job: Job, state: State, resume: Path | None, measured: dict[str, Any]) -> None:
    run, shape = job.orders.run, job.train.shape
    parameters = num_parameters(job)
    job.metrics.write(
        "run",
        format_version=FORMAT_VERSION,
        name=run.name,
        world=job.ranks.world,
        steps=job.steps,
        start_step=state.step,
        resumed_from=str(resume) if resume else None,
        parameters=parameters,
        micro_batch=shape.micro,
        accumulation=shape.accumulation,
        global_batch=shape.total,
        max_length=run.spec.data.max_length,
        train_tokens=job.prepared.train_tokens,
        eval_tokens=job.prepared.eval_tokens,
        records_left_out=job.prepared.skipped,
        records_cut=job.prepared.truncated,
        unigram_entropy=job.prepared.unigram_entropy,
        steps_per_epoch=job.train.steps_per_epoch,
        zero_stage=job.engine.zero_optimization_stage(),
        run_sha256=job.orders.sha256,
        **measured,
    )
    job.status.set("running", step=state.step)
