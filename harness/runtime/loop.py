"""The training loop, in one screen: no callbacks and no flags. What varies is in the DeepSpeed JSON and in `build`.

Starting and ending the process is in `main.py`.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import set_seed

from harness.runtime import checkpoint
from harness.runtime.data import EvalData, TrainData, open_eval, open_train, prepare_together
from harness.runtime.engine import batch_shape, build_engine, refuse_unsupported
from harness.runtime.evaluate import evaluate
from harness.runtime.metrics import FORMAT_VERSION, Metrics, Stopwatch, memory
from harness.runtime.models import build_model, load_config
from harness.runtime.prepare import Prepared
from harness.runtime.progress import Display, display
from harness.runtime.ranks import Ranks
from harness.runtime.rundir import Orders, RunDir
from harness.runtime.schedule import total_steps
from harness.runtime.state import State
from harness.runtime.status import Status
from harness.runtime.stopping import asked_to_stop, reason
from harness.runtime.tokens import load_tokenizer


@dataclass(frozen=True)
class Job:
    """Everything that a run holds while it trains."""

    orders: Orders
    run_dir: RunDir
    ranks: Ranks
    status: Status
    tokenizer: Any
    engine: Any
    prepared: Prepared
    train: TrainData
    held_out: EvalData | None
    steps: int
    metrics: Metrics

    @property
    def facts(self) -> dict[str, Any]:
        """What a checkpoint keeps of where it comes from, and what a resume must find unchanged."""
        spec, config = self.orders.run.spec, self.orders.ds_config
        return {
            "run_sha256": self.orders.sha256,
            "data_sha256": self.prepared.sha256,
            "continuity": {
                "data.max_length": spec.data.max_length,
                "data.shuffle": spec.data.shuffle,
                "train.seed": spec.train.seed,
                "optimizer": config["optimizer"],
                "zero.round_robin_gradients": bool(spec.zero.round_robin_gradients),
            },
        }


def build(orders: Orders, run_dir: RunDir, ranks: Ranks, status: Status) -> Job:
    """Tokenizer, data, model, engine, in this order: what can be refused cheaply is looked at first."""
    run, ds_config = orders.run, orders.ds_config
    ranks.together(lambda: refuse_unsupported(run, ds_config))
    shape = ranks.together(lambda: batch_shape(ds_config, ranks.world))
    tokenizer = ranks.together(lambda: load_tokenizer(run.spec.model))
    config = ranks.together(lambda: load_config(run.spec.model, tokenizer))
    prepared = prepare_together(run, tokenizer, run_dir.data, ranks)
    train = ranks.together(lambda: open_train(run, run_dir.data, prepared, shape, ranks.rank))
    held_out = ranks.together(lambda: open_eval(run, run_dir.data, prepared, shape, ranks.rank))
    steps = total_steps(run.spec, train.steps_per_epoch)
    engine = build_engine(run, ds_config, build_model(run, ds_config, config), steps)
    set_seed(run.spec.train.seed + ranks.rank)  # from here on, dropout: another mask on every rank
    return Job(
        orders,
        run_dir,
        ranks,
        status,
        tokenizer,
        engine,
        prepared,
        train,
        held_out,
        steps,
        Metrics(run_dir.metrics if ranks.is_first else None),
    )


def train(job: Job, resume: Path | None) -> State:
    """Train until `job.steps` or until asked to stop; saves and evaluates when due. Returns the last state."""
    state = checkpoint.restore(job, resume) if resume else State()
    _write_start(job, state, resume)
    screen = display(job.steps, state.step, shown=job.ranks.is_first)
    try:
        return _train(job, state, screen)
    finally:
        screen.close()


def _train(job: Job, state: State, screen: Display) -> State:
    """Each step; a save comes before an evaluation, so that what goes wrong in the latter loses nothing."""
    spec, run_dir, ranks, metrics = job.orders.run.spec, job.run_dir, job.ranks, job.metrics
    watch, pace = Stopwatch(), Pace(state.tokens)
    saved: int | None = None
    stopping = False
    while state.step < job.steps and not stopping:
        logged = (state.step + 1) % spec.logging.logging_steps == 0 or state.step + 1 == job.steps
        watch.start(measured=logged)
        rate = job.engine.get_lr()[0]
        losses, state = one_step(job, state, watch)
        if logged:
            screen.step(state.step, *_log_step(job, state, losses, rate, watch, pace))
        job.status.set("running", step=state.step)
        if spec.checkpoint.save_steps and state.step % spec.checkpoint.save_steps == 0:
            with pace.paused():
                saved = save(job, state)
        stopping = ranks.any(asked_to_stop(run_dir))
        if stopping:
            metrics.write("stop", step=state.step, reason=reason(run_dir))
            screen.say(f"stopping at step {state.step}: {reason(run_dir)}")
        elif spec.eval.eval_steps and state.step % spec.eval.eval_steps == 0 and state.step < job.steps:
            with pace.paused():
                screen.say(run_evaluation(job, state))
    if spec.checkpoint.save_at_end and saved != state.step:
        save(job, state)
    if not stopping:
        screen.say(run_evaluation(job, state))
    return state


def one_step(job: Job, state: State, watch: Stopwatch) -> tuple[torch.Tensor, State]:
    """One optimizer step; returns the sum of this rank's micro-batch losses (float64, on the device), and the state."""
    with watch.part("data"):
        micro_batches, position = job.train.step(state.position)
    losses = torch.zeros((), dtype=torch.float64, device=job.ranks.device)
    for ids in micro_batches:
        with watch.part("forward"):
            ids = ids.to(job.ranks.device, non_blocking=True)  # noqa: PLW2901
            loss = job.engine(input_ids=ids, labels=ids, use_cache=False).loss
            losses += loss.detach()
        with watch.part("backward"):
            job.engine.backward(loss)
        with watch.part("optimizer"):
            job.engine.step()
    samples = job.train.shape.total
    return losses, state.advance(samples=samples, tokens=samples * job.train.blocks.length, position=position)


class Pace:
    """Tokens per second over the steps since the last line, without the time that evaluations and saves take."""

    def __init__(self, tokens: int) -> None:
        self._tokens, self._since = tokens, time.perf_counter()

    def read(self, tokens: int) -> float:
        """Tokens per second since the last reading."""
        now = time.perf_counter()
        speed = (tokens - self._tokens) / (now - self._since)
        self._tokens, self._since = tokens, now
        return speed

    def paused(self) -> Pace:
        """`with pace.paused():` leaves the time inside out."""
        return self

    def __enter__(self) -> None:
        self._paused_at = time.perf_counter()

    def __exit__(self, *_: object) -> None:
        self._since += time.perf_counter() - self._paused_at


def _log_step(
    job: Job, state: State, losses: torch.Tensor, rate: float, watch: Stopwatch, pace: Pace
) -> tuple[float, float]:
    """Write the line; returns loss and tokens per second.

    `loss` is the mean over this step's micro-batches of all ranks, before the update, summed in float64; the rate is
    the one that this step was taken with.
    """
    shape, engine = job.train.shape, job.engine
    loss = job.ranks.sum(losses)[0] / (shape.accumulation * shape.ranks)
    speed = pace.read(state.tokens)
    norm = engine.get_global_grad_norm()
    seconds, parts = watch.take()
    job.metrics.write(
        "step",
        step=state.step,
        loss=loss,
        learning_rate=float(rate),
        grad_norm=None if norm is None else float(norm),
        loss_scale=float(engine.optimizer.cur_scale) if engine.fp16_enabled() else None,
        tokens=state.tokens,
        samples=state.samples,
        tokens_per_second=round(speed, 2),
        seconds=seconds,
        **{f"seconds_{name}": part for name, part in parts.items()},
        **memory(),
        skipped=engine.skipped_steps,
    )
    return loss, speed


def run_evaluation(job: Job, state: State) -> str:
    """Evaluate on the held-out part and write the line; returns what to say."""
    if job.held_out is None:
        return f"step {state.step}: nothing is held out to evaluate on (`data.eval_fraction` is 0)"
    result = evaluate(job.engine, job.held_out, job.ranks, job.orders.run.spec.eval.max_batches)
    entropy = job.prepared.unigram_entropy
    job.metrics.write(
        "eval",
        step=state.step,
        loss=result.loss,
        perplexity=result.perplexity,
        tokens=result.tokens,
        unigram_entropy=entropy,
    )
    beside = "" if entropy is None else f" (unigram entropy {entropy:.3f})"
    return f"step {state.step}: held-out loss {result.loss:.3f}{beside}"


def save(job: Job, state: State) -> int:
    """Save a checkpoint, then drop old ones; returns its step."""
    began = time.perf_counter()
    folder = checkpoint.save(job, state)
    if job.ranks.is_first:
        checkpoint.prune(job.run_dir, job.orders.run.spec.checkpoint.save_total_limit)
    path = str(folder.relative_to(job.run_dir.root))
    job.metrics.write("save", step=state.step, path=path, seconds=round(time.perf_counter() - began, 6))
    job.status.set(job.status.state, step=state.step, checkpoint=path)
    return state.step


def _write_start(job: Job, state: State, resume: Path | None) -> None:
    run, shape = job.orders.run, job.train.shape
    parameters = sum(getattr(p, "ds_numel", p.numel()) for p in job.engine.module.parameters())
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
        max_length=job.train.blocks.length,
        train_tokens=job.prepared.train_tokens,
        eval_tokens=job.prepared.eval_tokens,
        unigram_entropy=job.prepared.unigram_entropy,
        steps_per_epoch=job.train.steps_per_epoch,
        zero_stage=job.engine.zero_optimization_stage(),
        run_sha256=job.orders.sha256,
    )
    job.status.set("running", step=state.step)
