# SPDX-License-Identifier: Apache-2.0
"""The harness's loop on run directories of preferences and labels, measured, compared, killed and resumed.

`preference_events.py JOBS.json`, where a job is {"run": DIR, "resume": CHECKPOINT or null} with any of
  "peak": true            the most bytes that the second step allocates, to DIR/facts.json
  "live": true            a second engine of the same weights computes the reference of each micro-batch beside the cached
  "kill_reference": N     the last rank is killed when it has computed N micro-batches of the reference
  "kill_step": N          the last rank is killed after step N
Rank 0 writes DIR/facts.json: {"norms", "peak"}, {"compared", "differing"} of all ranks, and "computed", its micro-batches
of the reference.
"""

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import torch

from harness.runtime.distributed import Distributed, destroy_process_group, init_process_group
from harness.runtime.engine import build_engine
from harness.runtime.objectives import reference_cache
from harness.runtime.objectives.answer_log_probs import reference_mode
from harness.runtime.objectives.objective_list import make_objective
from harness.runtime.objectives.preference import Preference
from harness.runtime.rank_status import RankStatusWriter
from harness.runtime.run_config import RunConfig, RunDir
from harness.runtime.train import train
from harness.runtime.train_context import TrainContext, build_context
from harness.runtime.worker import _load_run_config_on_all_ranks, _set_log_levels
from tests.support.training.allocations import peak_of

reference_cache._BLOCK_MICRO_BATCHES = 4


def main() -> None:
    ranks = init_process_group()
    _set_log_levels("error")
    for job in json.loads(Path(sys.argv[-1]).read_text()):
        run_dir, facts = RunDir(Path(job["run"])), dict[str, Any](norms=[], computed=0, compared=0, differing=0)
        orders = _load_run_config_on_all_ranks(run_dir, ranks)
        status = RankStatusWriter(run_dir, ranks.rank)
        restore = _count_reference(ranks, facts, job.get("kill_reference"))
        built = build_context(orders, run_dir, ranks, status)
        restore()
        _follow_steps(built, ranks, facts, job.get("kill_step"))
        if job.get("peak"):
            _measure_second_step(built, facts)
        if job.get("live"):
            _compare_with_live(built, orders, ranks, facts)
        train(built, Path(job["resume"]) if job.get("resume") else None)
        built.metrics.close()
        built.engine.destroy()
        for name in ("compared", "differing"):
            facts[name] = sum(ranks.all_gather_object(facts[name]))
        if ranks.is_main_process:
            (run_dir.root / "facts.json").write_text(json.dumps(facts))
    destroy_process_group()


def _die_at(ranks: Distributed, limit: int | None, count: int) -> None:
    if limit is not None and count >= limit and ranks.rank == ranks.world_size - 1:
        os.kill(os.getpid(), signal.SIGKILL)


def _count_reference(ranks: Distributed, facts: dict[str, Any], limit: int | None) -> Any:
    kinds = [kind for kind in Preference.__subclasses__() if "reference_columns" in vars(kind)]
    originals = {kind: kind.reference_columns for kind in kinds}

    def counted(original: Any) -> Any:
        def reference_columns(*arguments: Any) -> Any:
            _die_at(ranks, limit, facts["computed"])
            columns = original(*arguments)
            facts["computed"] += 1
            return columns

        return reference_columns

    def restore() -> None:
        for kind, original in originals.items():
            kind.reference_columns = original  # type: ignore[method-assign]

    for kind, original in originals.items():
        kind.reference_columns = counted(original)  # type: ignore[method-assign]
    return restore


def _follow_steps(built: TrainContext, ranks: Distributed, facts: dict[str, Any], limit: int | None) -> None:
    engine, step = built.engine, built.engine.step

    def step_and_record() -> None:
        is_last = engine.is_gradient_accumulation_boundary()
        step()
        if is_last:
            facts["norms"].append(float(engine.get_global_grad_norm() or 0))
            _die_at(ranks, limit, len(facts["norms"]))

    engine.step = step_and_record  # type: ignore[method-assign]


def _measure_second_step(built: TrainContext, facts: dict[str, Any]) -> None:
    stepper: Any = built.stepper
    train_step, taken = stepper.train_step, []

    def measured(*arguments: Any) -> Any:
        taken.append(None)
        if len(taken) != 2:  # the first allocates the optimizer's state
            return train_step(*arguments)
        facts["peak"] = peak_of(lambda: taken.append(train_step(*arguments)))
        return taken[-1]

    stepper.train_step = measured


def _compare_with_live(built: TrainContext, orders: RunConfig, ranks: Distributed, facts: dict[str, Any]) -> None:
    """A second engine of the weights before training, as frozen models beside a trained one have it."""
    live, objective = make_objective(orders.run), built.objective
    assert isinstance(live, Preference) and isinstance(objective, Preference)  # noqa: PT018
    module = live.build_model(orders.ds_config, built.config)
    engine = build_engine(orders.run, orders.ds_config, module, built.total_steps, built.patches, ranks)
    live.install_loss(engine, built.patches, is_main_process=False)
    live.make_stepper(engine, ranks, built.topology)
    unit_losses = objective.unit_losses

    def compared(trained: Any, batch: Any) -> torch.Tensor:
        with reference_mode(engine):
            columns = torch.stack(live.reference_columns(engine, batch), dim=1).float().cpu()
        facts["compared"] += columns.numel()
        facts["differing"] += int((columns != batch.reference).sum())
        return unit_losses(trained, batch)

    objective.unit_losses = compared  # type: ignore[method-assign]


if __name__ == "__main__":
    main()
