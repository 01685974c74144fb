# SPDX-License-Identifier: Apache-2.0
"""The harness's engine and stepper on several run directories in turn, on rows made here, beside a plain process.

`parallel_many.py JOBS.json`, where a job is {"run": DIR, "model": DIR, "bf16", "packed", "skewed"}. Rank 0 writes
DIR/outcome.json: {"error" or null, "losses", "norms", "eval", "plain_losses", "plain_norms", "plain_eval", "seconds"}.
"""

import json
import os
import sys
import time
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from harness.runtime.distributed import Distributed, destroy_process_group, init_process_group
from harness.runtime.engine import build_engine, resolve_topology
from harness.runtime.micro_batch import IGNORE_INDEX, MicroBatch, find_borders
from harness.runtime.models import build_model, load_config
from harness.runtime.objectives.causal_lm import CausalLM
from harness.runtime.patch_selection import resolve_patches
from harness.runtime.run_config import RunConfig, RunDir
from harness.runtime.step import Stepper
from harness.runtime.step_timer import StepTimer
from harness.runtime.tokenizer import load_tokenizer
from harness.runtime.topology import Topology
from harness.runtime.worker import _load_run_config_on_all_ranks, _set_log_levels
from tests.support.training.flash_attention_stand_in import flash_attention_stand_in
from tests.support.training.parallel_cases import ACCUMULATION, CLIP, LENGTH, MICRO, OPTIMIZER, SEED, STEPS, WARMUP
from tests.support.training.plain_reference import Rows, Settings, train_plainly

SETTINGS = Settings(OPTIMIZER, STEPS, WARMUP, CLIP)
_plain: dict[tuple[Any, ...], tuple[list[float], list[float], float]] = {}


@dataclass(frozen=True)
class Built:
    """What `build_context` makes, without data."""

    engine: Any
    stepper: Stepper
    topology: Topology


def main() -> None:
    ranks = init_process_group()
    for job in json.loads(Path(sys.argv[-1]).read_text()):
        began, outcome = time.perf_counter(), {}
        try:
            outcome = _case(ranks, job) | {"error": None}
        except Exception as raised:  # other ranks may stand in other collectives: all end with this one
            traceback.print_exc()
            outcome = {"error": f"{type(raised).__name__}: {raised}"}
        if ranks.is_main_process or outcome["error"]:
            outcome["seconds"] = round(time.perf_counter() - began, 2)
            (Path(job["run"]) / "outcome.json").write_text(json.dumps(outcome))
        if outcome["error"]:
            sys.stderr.flush()
            os._exit(1)
    destroy_process_group()


def build(ranks: Distributed, orders: RunConfig) -> Built:
    run, place = orders.run, resolve_topology(orders.run, ranks)
    config = load_config(run.spec.model, load_tokenizer(run.spec.model))
    patches = resolve_patches(run, orders.ds_config, is_main_process=ranks.is_main_process)
    engine = build_engine(run, orders.ds_config, build_model(run, orders.ds_config, config), STEPS, patches, ranks)
    objective = CausalLM(run)
    objective.install_loss(engine, patches, is_main_process=ranks.is_main_process)
    return Built(engine, objective.make_stepper(engine, ranks, place), place)


def _case(ranks: Distributed, job: dict[str, Any]) -> dict[str, Any]:
    orders = _load_run_config_on_all_ranks(RunDir(Path(job["run"])), ranks)
    _set_log_levels("error")
    if "flash" in (orders.run.attn_implementation or ""):
        with flash_attention_stand_in():
            return _train(ranks, job, orders)
    return _train(ranks, job, orders)


def _train(ranks: Distributed, job: dict[str, Any], orders: RunConfig) -> dict[str, Any]:
    built = build(ranks, orders)
    place = built.topology
    steps = [rows_of(job, step, place.data_parallel_size) for step in range(STEPS)]
    held_out = rows_of(job, STEPS, place.data_parallel_size)
    losses, norms = [], []
    for rows in steps:
        part = built.stepper.train_step(mine(rows, place.data_parallel_rank), predicted(rows), StepTimer())
        losses.append(ranks.all_reduce_sum(part)[0] / (ACCUMULATION * place.data_parallel_size))
        norm = built.engine.get_global_grad_norm()
        norms.append(None if norm is None else float(norm))
    evaluated = _evaluate(built, ranks, mine(held_out, place.data_parallel_rank))
    outcome = {"losses": losses, "norms": norms, "eval": evaluated}
    losses_of = (built.stepper, getattr(built.stepper, "_micro_batch_loss", None))
    outcome["in_chunks"] = any(getattr(each, "_head", None) is not None for each in losses_of)
    built.engine.destroy()
    if ranks.is_main_process:
        outcome |= _beside(job, steps, held_out, place.data_parallel_size)
    return outcome


def _evaluate(built: Built, ranks: Distributed, batches: list[MicroBatch]) -> float:
    built.engine.eval()
    with torch.no_grad():
        parts = [built.stepper.eval_step(batch) for batch in batches]
    built.engine.train()
    total, count = ranks.all_reduce_sum(torch.stack([p[0] for p in parts]).sum(), sum(p[1] for p in parts))
    return total / count


def _beside(
    job: dict[str, Any], steps: list[list[MicroBatch]], held_out: list[MicroBatch], size: int
) -> dict[str, Any]:
    """What one plain process makes of the same rows, once for each kind of rows."""
    key = (job["model"], job["bf16"], job["packed"], job["skewed"], size)
    if key not in _plain:
        rows = [[_plain_rows(b) for b in step] for step in [*steps, held_out]]
        # The loss before update STEPS + 1 is that of the held-out rows after all others.
        trace = train_plainly(Path(job["model"]), rows, SETTINGS, bf16=job["bf16"])
        _plain[key] = trace.losses[:STEPS], trace.norms[:STEPS], trace.losses[STEPS]
    losses, norms, evaluated = _plain[key]
    return {"plain_losses": losses, "plain_norms": norms, "plain_eval": evaluated}


def _plain_rows(batch: MicroBatch) -> Rows:
    return Rows(batch.input_ids, batch.labels, batch.position_ids, batch.attention_mask)


def rows_of(job: dict[str, Any], step: int, data_size: int) -> list[MicroBatch]:
    """The micro-batches of a global batch: number m of data rank r is at m x data_size + r. One of them has no label."""
    draw = torch.Generator().manual_seed(SEED + step)
    batches = []
    for index in range(ACCUMULATION * data_size):
        ids = torch.randint(0, 256, (MICRO, LENGTH), generator=draw)
        if job["skewed"]:
            ids = torch.full_like(ids, index % data_size) + 3 * (ids > 240)
        labels, positions = ids.clone(), torch.arange(LENGTH).repeat(MICRO, 1)
        for row in range(MICRO):
            at = int(torch.randint(2, LENGTH - 2, (1,), generator=draw))
            if job["packed"]:
                positions[row, at:] = torch.arange(LENGTH - at)
                labels[row, at] = labels[row, 0] = IGNORE_INDEX
            else:
                labels[row, :at] = IGNORE_INDEX
        if index == 0 and step % 3 == 0:
            labels[:] = IGNORE_INDEX
        packed = (positions, None, find_borders(positions)) if job["packed"] else ()
        batches.append(MicroBatch(ids, labels, *packed))
    return batches


def mine(rows: list[MicroBatch], data_rank: int) -> list[MicroBatch]:
    return rows[data_rank :: len(rows) // ACCUMULATION]


def predicted(rows: list[MicroBatch]) -> int:
    return sum(batch.num_targets for batch in rows)


if __name__ == "__main__":
    main()
