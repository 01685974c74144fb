"""The harness's own loop on several run directories in the same ranks, some of them spoiled behind its back.

`attest_many.py JOBS.json`, where a job is {"run": DIR, "resume": DIR or null, "deed": name or ""}. Rank 0 writes
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

from harness.errors import Refused
from harness.runtime import loop
from harness.runtime.data import TrainData
from harness.runtime.main import _quieten, _read_together
from harness.runtime.ranks import Ranks, join, leave
from harness.runtime.refusals import lines
from harness.runtime.rundir import RunDir
from harness.runtime.status import Status


def main() -> None:
    ranks = join()
    for job in json.loads(Path(sys.argv[-1]).read_text()):
        outcome: dict[str, Any] = {"error": None, "ids": [], "code": 0, "findings": []}
        try:
            with spoiled(job["deed"], ranks):
                _train(ranks, job)
        except Refused as refused:
            outcome |= {"ids": [f.gate for f in refused.findings], "code": int(refused.code)}
            outcome["findings"] = lines(refused.findings)
        except Exception as raised:
            traceback.print_exc()
            outcome["error"] = f"{type(raised).__name__}: {raised}"[:500]
        if ranks.is_first:
            (Path(job["run"]) / "outcome.json").write_text(json.dumps(outcome))
        if outcome["error"]:  # other ranks may stand in other collectives
            sys.stderr.flush()
            os._exit(1)
    leave()


def _train(ranks: Ranks, job: dict[str, Any]) -> None:
    run_dir = RunDir(Path(job["run"]))
    orders = _read_together(run_dir, ranks)
    _quieten("error")
    built = loop.build(orders, run_dir, ranks, Status(run_dir, ranks.rank))
    try:
        loop.train(built, Path(job["resume"]) if job["resume"] else None)
    finally:
        built.metrics.close()
    built.engine.destroy()


@contextlib.contextmanager
def spoiled(deed: str, ranks: Ranks) -> Iterator[None]:
    """Something that DeepSpeed or a loop might do wrong, done on purpose while this lasts."""
    if not deed:
        yield
        return
    original = loop.build_engine, loop.make_stepper, loop.build_model, TrainData.step
    try:
        DEEDS[deed](ranks)
        yield
    finally:
        loop.build_engine, loop.make_stepper, loop.build_model, TrainData.step = original


def _after_engine(change: Any) -> None:
    original = loop.build_engine

    def build(*arguments: Any) -> Any:
        engine = original(*arguments)
        with torch.no_grad():
            change(engine)
        return engine

    loop.build_engine = build


def _scramble(_: Ranks) -> None:
    def change(engine: Any) -> None:
        weight = engine.module.model.layers[0].mlp.up_proj.weight
        weight.copy_(weight.t().contiguous().view(weight.shape))

    _after_engine(change)


def _other_initialisation(_: Ranks) -> None:
    original = loop.build_model

    def build(*arguments: Any) -> Any:
        model = original(*arguments)
        torch.nn.init.normal_(model.model.embed_tokens.weight)
        return model

    loop.build_model = build


def _bare_init(_: Ranks) -> None:
    """`deepspeed.zero.Init` without the `HfDeepSpeedConfig` that tells `transformers` of it."""
    from transformers import AutoModelForCausalLM

    def build(_run: Any, ds_config: dict[str, Any], config: Any) -> Any:
        config.pad_token_id = (
            None  # a row of it would be zeroed in a weight that is empty by then: an error, not silent
        )
        with deepspeed.zero.Init(config_dict_or_path=ds_config):
            return AutoModelForCausalLM.from_config(config).train()

    loop.build_model = build


def _steep_head(_: Ranks) -> None:
    original = loop.build_model

    def build(*arguments: Any) -> Any:
        model = original(*arguments)
        with torch.no_grad():
            model.model.norm.weight.mul_(300.0)
        return model

    loop.build_model = build


def _hidden_step(_: Ranks) -> None:
    def change(engine: Any) -> None:
        for group in engine.optimizer.param_groups:
            for parameter in group["params"]:
                parameter.grad = torch.zeros_like(parameter)
        engine.optimizer.step()
        engine.optimizer.zero_grad()

    _after_engine(change)


def _forgotten_parameter(_: Ranks) -> None:
    _after_engine(lambda engine: engine.optimizer.param_groups[-1]["params"].pop())


def _thawed_parameter(_: Ranks) -> None:
    def change(engine: Any) -> None:
        next(p for p in engine.module.parameters() if not p.requires_grad).requires_grad_(True)

    _after_engine(change)


def _step(spoil: Any) -> None:
    """`spoil(engine, step)` after each step of the stepper."""
    original = loop.make_stepper

    def make(engine: Any, *more: Any) -> Any:
        stepper, train, steps = original(engine, *more), None, 0
        train = stepper.train

        def spoiled_train(*arguments: Any) -> Any:
            nonlocal steps
            losses = train(*arguments)
            steps += 1
            with torch.no_grad():
                spoil(engine, steps)
            return losses

        stepper.train = spoiled_train
        return stepper

    loop.make_stepper = make


def _drift(ranks: Ranks) -> None:
    def change(engine: Any, _step: int) -> None:
        if ranks.rank == 1:
            next(iter(engine.module.parameters())).view(-1)[0] += 1e-3

    _step(change)


def _huge_norm(_: Ranks) -> None:
    _step(lambda engine, _: setattr(engine, "_global_grad_norm", 88987.0))


def _rate(_: Ranks) -> None:
    _step(lambda engine, _: [group.update(lr=0.5) for group in engine.optimizer.param_groups])


def _frozen_weights(_: Ranks) -> None:
    def change(engine: Any) -> None:
        engine.optimizer.step = lambda *_, **__: None

    _after_engine(change)


def _long_steps(_: Ranks) -> None:
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


def _all_skipped(_: Ranks) -> None:
    _step(lambda engine, _: setattr(engine, "skipped_steps", engine.skipped_steps + 1))


def _decay(_: Ranks) -> None:
    _after_engine(lambda engine: engine.optimizer.param_groups[0].update(weight_decay=0.5))


def _own_rows(ranks: Ranks) -> None:
    """A loader that goes by the rank in the world."""
    _rows_of(ranks.rank)


def _same_rows(_: Ranks) -> None:
    """A loader that forgets the data rank."""
    _rows_of(0)


def _rows_of(rank: int) -> None:
    step = TrainData.step

    def wrong(self: TrainData, position: Any) -> Any:
        drawn = step(self, position)
        rows = np.repeat(drawn.rows[:, :1], drawn.rows.shape[1], axis=1)
        batches = [self.sequences.batch(part[0] + rank) for part in rows]
        return dataclasses.replace(drawn, micro_batches=batches, rows=rows)

    TrainData.step = wrong  # type: ignore[method-assign]


def _lost_step(_: Ranks) -> None:
    _step(lambda engine, _: setattr(engine, "global_steps", engine.global_steps - 1))


DEEDS = {
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
