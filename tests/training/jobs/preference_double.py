# SPDX-License-Identifier: Apache-2.0
"""Objectives of preferences in fp64, with torch's AdamW in the place of DeepSpeed's engine, which takes no such model.

`preference_double.py JOBS.json`, where a job is {"run": DIR, "adapters": bool, "steps": N}. Writes DIR/double.pt: losses,
and gradients of each parameter, of each step. Data, reference, loss and stepper are the harness's.
"""

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from harness.runtime.distributed import Distributed, destroy_process_group, init_process_group
from harness.runtime.engine import resolve_batch_geometry, resolve_topology
from harness.runtime.objectives import preference
from harness.runtime.objectives.objective_list import make_objective
from harness.runtime.patch_selection import resolve_patches
from harness.runtime.rank_status import RankStatusWriter
from harness.runtime.run_config import RunConfig, RunDir, load_run_config
from harness.runtime.step_timer import StepTimer
from harness.runtime.train_state import DataPosition
from harness.runtime.worker import _set_log_levels
from tests.support.training.double_mode import double_mode
from tests.support.training.preference_case import set_adapters


class _PlainEngine:
    """What objectives and steppers call of an engine, on one rank."""

    def __init__(self, module: torch.nn.Module, config: RunConfig, accumulation: int) -> None:
        self.module, self._accumulation = module, accumulation
        optimizer = config.run.spec.optimizer
        self._optimizer = torch.optim.AdamW(
            [one for one in module.parameters() if one.requires_grad],
            lr=optimizer.learning_rate,
            betas=optimizer.betas,
            eps=optimizer.eps,
            weight_decay=optimizer.weight_decay,
        )
        self._max_norm, self._micro_steps = config.run.spec.train.max_grad_norm, 0
        self.gradients: list[dict[str, torch.Tensor]] = []

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.module(*args, **kwargs)

    def backward(self, loss: torch.Tensor) -> None:
        (loss / self._accumulation).backward()  # type: ignore[no-untyped-call]

    def step(self) -> None:
        self._micro_steps += 1
        if self._micro_steps % self._accumulation:
            return
        named = self.module.named_parameters()
        self.gradients.append({name: one.grad.clone() for name, one in named if one.grad is not None})
        torch.nn.utils.clip_grad_norm_(self.module.parameters(), self._max_norm)
        self._optimizer.step()
        self._optimizer.zero_grad()

    def train(self) -> None:
        self.module.train()

    def eval(self) -> None:
        self.module.eval()

    def torch_autocast_enabled(self) -> bool:
        return False

    fp16_enabled = torch_autocast_enabled


def _compute_reference(
    _folder: Path,
    micro_batches: Sequence[np.ndarray],
    num_columns: int,
    compute: Callable[[np.ndarray], np.ndarray],
    *_: Any,
) -> np.ndarray:
    """As `compute_reference`, whose files are in fp32."""
    values = np.empty((1 + max(part.max() for part in micro_batches), num_columns))
    for part in micro_batches:
        values[part] = compute(part)
    return values


def _train_in_double(run_dir: RunDir, ranks: Distributed, *, adapters: bool, steps: int) -> dict[str, Any]:
    config = load_run_config(run_dir)
    run, ds_config, status = config.run, config.ds_config, RankStatusWriter(run_dir, ranks.rank)
    patches = resolve_patches(run, ds_config, is_main_process=True)
    topology, objective = resolve_topology(run, ranks), make_objective(run)
    tokenizer = objective.load_tokenizer()
    model_config = objective.load_config(tokenizer)
    geometry = resolve_batch_geometry(ds_config, topology.data_parallel_size)
    data = objective.open_data(tokenizer, run_dir, ranks, geometry, topology.data_parallel_rank)
    model = objective.build_model(ds_config, model_config)
    if adapters:
        set_adapters(model)
    engine: Any = _PlainEngine(model.double(), config, geometry.accumulation_steps)
    objective.install_loss(engine, patches, is_main_process=True)
    stepper, timer = objective.make_stepper(engine, ranks, topology), StepTimer()
    losses, position = [], DataPosition()
    with double_mode():
        objective.prepare(engine, data, ranks, status)
        for _ in range(steps):
            batch = data.train.batch_at(position)
            position = batch.next_position
            total = stepper.train_step(batch.micro_batches, batch.num_targets, timer)
            losses.append(total.item() / len(batch.micro_batches))
    return {"losses": losses, "gradients": engine.gradients}


def main() -> None:
    ranks = init_process_group()
    _set_log_levels("error")
    preference.compute_reference = _compute_reference
    for job in json.loads(Path(sys.argv[-1]).read_text()):
        run_dir = RunDir(Path(job["run"]))
        figures = _train_in_double(run_dir, ranks, adapters=job["adapters"], steps=job["steps"])
        torch.save(figures, run_dir.root / "double.pt")
    destroy_process_group()


if __name__ == "__main__":
    main()
