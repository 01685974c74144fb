# SPDX-License-Identifier: Apache-2.0
"""Run directories as `harness launch` makes them, and the harness's own loop in one."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.gpu_checks.check import Scene
from benchmarks.gpu_checks.training import render, resolve


def write_run(folder: Path, spec: dict[str, Any], world_size: int, *, torch_adam: bool = False) -> Path:
    """A run directory of this spec with the harness's defaults; `torch_adam`: torch's own, which needs no op."""
    run = resolve(spec, world_size, tuned=True)
    for part in ("logs", "status", "checkpoints"):
        (folder / part).mkdir(parents=True, exist_ok=True)
    (folder / "spec.resolved.json").write_text(json.dumps(run.to_json()), encoding="utf-8")
    config = render(run)
    if torch_adam:
        config["optimizer"]["params"]["torch_adam"] = True
    (folder / "ds_config.json").write_text(json.dumps(config, indent=1), encoding="utf-8")
    return folder


def train_run(
    scene: Scene,
    folder: Path,
    spec: dict[str, Any],
    *,
    resume: Path | None = None,
    torch_adam: bool = False,
    change: Callable[[Any], Any] = lambda _: None,
) -> Any:
    """Train in a run directory, written where it is not there yet. Returns the context, to which `change` is done
    before the first step.
    """
    from harness.runtime.rank_status import RankStatusWriter
    from harness.runtime.run_config import RunDir
    from harness.runtime.train import train
    from harness.runtime.train_context import build_context
    from harness.runtime.worker import _load_run_config_on_all_ranks, _set_log_levels

    distributed = scene.distributed
    if distributed.is_main_process and not (folder / "ds_config.json").is_file():
        write_run(folder, spec, scene.world_size, torch_adam=torch_adam)
    distributed.barrier()
    run_dir = RunDir(folder)
    run_config = _load_run_config_on_all_ranks(run_dir, distributed)
    _set_log_levels("error")
    status = RankStatusWriter(run_dir, distributed.rank)
    context = build_context(run_config, run_dir, distributed, status, is_resumed=resume is not None)
    change(context)
    train(context, resume)
    context.metrics.close()
    distributed.barrier()
    return context


def read_lines(folder: Path, kind: str) -> list[dict[str, Any]]:
    """The lines of one type of a run's metrics.jsonl."""
    lines = map(json.loads, (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines())
    return [line for line in lines if line["type"] == kind]


def newest_checkpoint(folder: Path) -> Path | None:
    """The complete checkpoint with the highest step."""
    return max((folder / "checkpoints").glob("step-*"), default=None)


def note_starts(context: Any, starts: list[float], clock: Callable[[], float] = time.perf_counter) -> None:
    """By a clock of its own: when each step begins to compute."""
    stepper = context.stepper
    step = stepper.train_step

    def noted(*arguments: Any, **named: Any) -> Any:
        starts.append(clock())
        return step(*arguments, **named)

    stepper.train_step = noted
