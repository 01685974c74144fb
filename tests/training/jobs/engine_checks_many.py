# SPDX-License-Identifier: Apache-2.0
"""The harness's own loop on several run directories in the same ranks, some of them with a fault.

`engine_checks_many.py JOBS.json`, where a job is {"run": DIR, "resume": DIR or null, "fault": name or ""}. Rank 0 writes
DIR/outcome.json: {"error", "ids", "code", "findings"}: what the ranks were stopped with, if they were.
"""

import contextlib
import dataclasses
import json
import os
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import deepspeed
import numpy as np
import torch

from harness.errors import UserError
from harness.runtime import train_context
from harness.runtime.dataset.sampler import TrainData
from harness.runtime.distributed import Distributed, destroy_process_group, init_process_group
from harness.runtime.objectives import causal_lm
from harness.runtime.objectives.causal_lm import CausalLM
from harness.runtime.rank_status import RankStatusWriter
from harness.runtime.run_config import RunDir
from harness.runtime.train import train
from harness.runtime.user_errors import format_findings
from harness.runtime.worker import _load_run_config_on_all_ranks, _set_log_levels


def main() -> None:
    distributed = init_process_group()
    for job in json.loads(Path(sys.argv[-1]).read_text()):
        outcome: dict[str, Any] = {"error": None, "ids": [], "code": 0, "findings": []}
        try:
            with inject_fault(job["fault"], distributed):
                _train(distributed, job)
        except UserError as error:
            outcome |= {"ids": [f.gate for f in error.findings], "code": int(error.code)}
            outcome["findings"] = format_findings(error.findings)
        except Exception as error:
            traceback.print_exc()
            outcome["error"] = f"{type(error).__name__}: {error}"[:500]
        if distributed.is_main_process:
            (Path(job["run"]) / "outcome.json").write_text(json.dumps(outcome))
        if outcome["error"]:  # other ranks may stand in other collectives
            sys.stderr.flush()
            os._exit(1)
    destroy_process_group()


def _train(distributed: Distributed, job: dict[str, Any]) -> None:
    run_dir = RunDir(Path(job["run"]))
    run_config = _load_run_config_on_all_ranks(run_dir, distributed)
    _set_log_levels("error")
    ctx = train_context.build_context(run_config, run_dir, distributed, RankStatusWriter(run_dir, distributed.rank))
    try:
        train(ctx, Path(job["resume"]) if job["resume"] else None)
    finally:
        ctx.metrics.close()
    ctx.engine.destroy()


@contextlib.contextmanager
def inject_fault(fault: str, distributed: Distributed) -> Iterator[None]:
    """A fault that DeepSpeed or a training loop might have, for as long as the context lasts."""
    if not fault:
        yield
        return
    original = train_context.build_engine, CausalLM.make_stepper, causal_lm.build_model, TrainData.batch_at
    try:
        FAULTS[fault](distributed)
        yield
    finally:
        train_context.build_engine, CausalLM.make_stepper, causal_lm.build_model, TrainData.batch_at = original


def _after_engine(change: Any) -> None:
    original = train_context.build_engine

    def build(*arguments: Any) -> Any:
        engine = original(*arguments)
        with torch.no_grad():
            change(engine)
        return engine

    train_context.build_engine = build


def _scramble(_: Distributed) -> None:
    def change(engine: Any) -> None:
        weight = engine.module.model.layers[0].mlp.up_proj.weight
        weight.copy_(weight.t().contiguous().view(weight.shape))

    _after_engine(change)


def _other_initialisation(_: Distributed) -> None:
    original = causal_lm.build_model

    def build(*arguments: Any) -> Any:
        model = original(*arguments)
        torch.nn.init.normal_(model.model.embed_tokens.weight)
        return model

    causal_lm.build_model = build


def _bare_init(_: Distributed) -> None:
    """`deepspeed.zero.Init` without the `HfDeepSpeedConfig` that tells `transformers` of it."""
    from transformers import AutoModelForCausalLM

    def build(_run: Any, ds_config: dict[str, Any], config: Any) -> Any:
        config.pad_token_id = (
            None  # a row of it would be zeroed in a weight that is empty by then: an error, not silent
        )
        with deepspeed.zero.Init(config_dict_or_path=ds_config):
            return AutoModelForCausalLM.from_config(config).train()

    causal_lm.build_model = build


def _steep_head(_: Distributed) -> None:
    original = causal_lm.build_model

    def build(*arguments: Any) -> Any:
        model = original(*arguments)
        with torch.no_grad():
            model.model.norm.weight.mul_(300.0)
        return model

    causal_lm.build_model = build


def _hidden_step(_: Distributed) -> None:
    def change(engine: Any) -> None:
        for group in engine.optimizer.param_groups:
            for parameter in group["params"]:
                parameter.grad = torch.zeros_like(parameter)
        engine.optimizer.step()
        engine.optimizer.zero_grad()

    _after_engine(change)


def _forgotten_parameter(_: Distributed) -> None:
    _after_engine(lambda engine: engine.optimizer.param_groups[-1]["params"].pop())


def _thawed_parameter(_: Distributed) -> None:
    def change(engine: Any) -> None:
        next(p for p in engine.module.parameters() if not p.requires_grad).requires_grad_(True)

    _after_engine(change)


def _step(spoil: Any) -> None:
    """`spoil(engine, step)` after each step of the stepper."""
    original = CausalLM.make_stepper

    def make(objective: Any, engine: Any, *more: Any) -> Any:
        stepper, train, steps = original(objective, engine, *more), None, 0
        train = stepper.train_step

        def spoiled_train(*arguments: Any) -> Any:
            nonlocal steps
            losses = train(*arguments)
            steps += 1
            with torch.no_grad():
                spoil(engine, steps)
            return losses

        stepper.train_step = spoiled_train
        return stepper

    CausalLM.make_stepper = make


def _drift(distributed: Distributed) -> None:
    def change(engine: Any, _step: int) -> None:
        if distributed.rank == 1:
            next(iter(engine.module.parameters())).view(-1)[0] += 1e-3

    _step(change)


def _huge_norm(_: Distributed) -> None:
    _step(lambda engine, _: setattr(engine, "_global_grad_norm", 88987.0))


def _rate(_: Distributed) -> None:
    _step(lambda engine, _: [group.update(lr=0.5) for group in engine.optimizer.param_groups])


def _frozen_weights(_: Distributed) -> None:
    def change(engine: Any) -> None:
        engine.optimizer.step = lambda *_, **__: None

    _after_engine(change)


def _long_steps(_: Distributed) -> None:
    def change(engine: Any) -> None:
        step = engine.optimizer.step

        def twice(*arguments: Any, **options: Any) -> Any:
            rates = [group["lr"] for group in engine.optimizer.param_groups]
            for group in engine.optimizer.param_groups:
                group["lr"] = 100 * group["lr"]
            step(*arguments, **options)
            for group, rate in zip(engine.optimizer.param_groups, rates, strict=True):
                group["lr"] = rate

        engine.optimizer.step = twice

    _after_engine(change)


def _all_skipped(_: Distributed) -> None:
    _step(lambda engine, _: setattr(engine, "skipped_steps", engine.skipped_steps + 1))


def _decay(_: Distributed) -> None:
    _after_engine(lambda engine: engine.optimizer.param_groups[0].update(weight_decay=0.5))


def _own_rows(distributed: Distributed) -> None:
    """A loader that goes by the rank in the world."""
    _rows_of(distributed.rank)


def _same_rows(_: Distributed) -> None:
    """A loader that forgets the data rank."""
    _rows_of(0)


def _rows_of(rank: int) -> None:
    step = TrainData.batch_at

    def wrong(self: TrainData, position: Any) -> Any:
        batch = step(self, position)
        rows = np.repeat(batch.row_indices[:, :1], batch.row_indices.shape[1], axis=1)
        batches = [self.dataset.make_batch(part[0] + rank) for part in rows]
        return dataclasses.replace(batch, micro_batches=batches, row_indices=rows)

    TrainData.batch_at = wrong  # type: ignore[method-assign]


def _lost_step(_: Distributed) -> None:
    _step(lambda engine, _: setattr(engine, "global_steps", engine.global_steps - 1))


FAULTS = {
    "scramble": _scramble,
    "bare-init": _bare_init,
    "other-initialisation": _other_initialisation,
    "steep-head": _steep_head,
    "hidden-step": _hidden_step,
    "forgotten-parameter": _forgotten_parameter,
    "thawed-parameter": _thawed_parameter,
    "drift": _drift,
    "huge-norm": _huge_norm,
    "rate": _rate,
    "frozen-weights": _frozen_weights,
    "long-steps": _long_steps,
    "all-skipped": _all_skipped,
    "decay": _decay,
    "own-rows": _own_rows,
    "same-rows": _same_rows,
    "lost-step": _lost_step,
}

if __name__ == "__main__":
    deepspeed.utils.logger.setLevel("ERROR")
    main()
