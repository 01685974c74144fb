# SPDX-License-Identifier: Apache-2.0
"""Run directories of the preference case, with the settings of TRL's figures."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

from tests.support.training import preference_case as case
from tests.support.training.forked_ranks import ForkedRanks
from tests.support.training.parity_cases import config
from tests.support.training.runtime_helpers import JOBS, metric_lines, write_run

FIGURES = json.loads((Path(__file__).parent / "trl_figures.json").read_text())
DAY_STEPS = 8
"""Of the cells outside of the grid: all records once and, with accumulation or answers of KTO, twice."""
_JOBS_A_START = 28
"""Runs of one forked process, which keeps some memory of each."""
ADAM = {"betas": [0.9, 0.999], "eps": 1e-8, "weight_decay": 0.0}
LORA = {"r": 4, "lora_alpha": 8, "lora_dropout": 0.0, "target_modules": ["q_proj", "v_proj"]}


def write_data(folder: Path) -> None:
    """The model and the records, below `folder`."""
    case.save_model(folder / "model")
    case.save_model(folder / "reward-model", 1)
    for name, rows in (("pairs", case.pairs()), ("labelled", case.labelled()), ("scored", case.scored())):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def spec_of(name: str, folder: Path, *, stage: int, ranks: int, cache: str, **changes: Any) -> dict[str, Any]:
    """The run spec of one of TRL's runs on so many ranks, which share its micro-batch."""
    figures = FIGURES["runs"][name]
    settings, method = figures["settings"], figures["method"]
    fields: dict[str, Any] = dict(settings) if method == "reward" else {"beta": case.SETTINGS["beta"], **settings}
    fields.pop("loss_weights", None)
    losses = fields.pop("loss_type", None)
    if losses:
        fields["loss_type"] = losses[0]
    if losses and "sft" in losses:
        fields["rpo_alpha"] = settings["loss_weights"][1]
    records = "scored" if name.endswith("margin") else "labelled" if method == "kto" else "pairs"
    rate = case.SETTINGS["learning_rate"]
    lora = {"lora": LORA} if name.endswith("lora") else {}
    micro, accumulation = figures["micro_batch"], figures["accumulation"]
    if micro >= ranks:
        micro //= ranks
    else:
        accumulation //= ranks
    return {
        "objective": method,
        method: fields,
        "model": {"name_or_path": str(folder / ("reward-model" if method == "reward" else "model")), **lora},
        "data": {
            "train": str(folder / f"{records}.jsonl"),
            "max_length": case.SETTINGS["max_length"],
            "shuffle": False,
            "group_by_length": False,
            "eval_fraction": 0.0,
            "cache_dir": str(folder / cache),
        },
        "train": {
            "max_steps": case.STEPS,
            "per_device_train_batch_size": micro,
            "gradient_accumulation_steps": accumulation,
            "max_grad_norm": 1.0,
            "gradient_checkpointing": False,
        },
        "optimizer": {"type": "adamw", "learning_rate": rate, **ADAM},
        "scheduler": {"type": "constant"},
        "deepspeed": case.ADAM,
        "precision": {"bf16": False},
        "zero": {"stage": stage},
        "checkpoint": {"save_at_end": False},
        "logging": {"logging_steps": 1},
        **changes,
    }


def write(run: Path, body: dict[str, Any], ranks: int) -> Path:
    """The run directory of a spec."""
    return write_run(run, body, config(body, ranks), world_size=ranks)


def grid(ranks: int) -> list[tuple[str, int]]:
    """(run, stage). Two ranks share a micro-batch; those of `rpo` are one pair, and two ranks share the accumulation."""
    accumulations = {"rpo": ("2", "8") if ranks == 2 else ("1", "4")}
    runs = [name for name in FIGURES["runs"] if name.startswith("grid-")]
    parts = {name: name.split("-") for name in runs}
    chosen = [name for name in runs if parts[name][2] in accumulations.get(parts[name][1], ("1", "4"))]
    return [(name, stage) for name in chosen for stage in range(4)]


def train_cells(
    folder: Path, cells: Iterable[tuple[int, str, int]], forked: ForkedRanks, *, gradients: bool = False
) -> None:
    """Train each (ranks, run, stage) in `folder`, where `write_data` wrote, many in one process. `gradients`: with
    TRL's batches of such ranks (`share_batch`), and keep those of each parameter at each step, in `gradients.pt`. Logits
    are computed in chunks, as TRL's and those of the defaults.
    """
    for ranks in (1, 2):
        jobs = []
        for _, name, stage in sorted(one for one in cells if one[0] == ranks):
            run = folder / f"{name}-{stage}-{ranks}"
            body, figures = (
                spec_of(name, folder, stage=stage, ranks=ranks, cache=f"cache-{name}-{ranks}"),
                FIGURES["runs"],
            )
            method, batch = body["objective"], (figures[name]["micro_batch"], figures[name]["accumulation"])
            if not name.startswith("grid-"):
                body["train"]["max_steps"] = DAY_STEPS
            if method != "reward":
                body["train"]["loss_chunk_size"] = 1024
            if gradients:
                body["train"]["per_device_train_batch_size"] = case.share_batch(method, *batch, ranks)[0]
            write(run, body, ranks)
            jobs.append({"run": str(run), "adapters": name.endswith("lora"), "gradients": gradients})
        for start in range(0, len(jobs), _JOBS_A_START):
            file = folder / f"jobs-{ranks}-{start}.json"
            file.write_text(json.dumps(jobs[start : start + _JOBS_A_START]))
            forked.run(JOBS / "preference_many.py", str(file), ranks=ranks, timeout=1200)


def figures_of(folder: Path, ranks: int, name: str, stage: int) -> dict[str, list[float]]:
    """Losses and norms of the steps of a trained cell. Without ZeRO DeepSpeed tells no norm."""
    run = folder / f"{name}-{stage}-{ranks}"
    norms = json.loads((run / "norms.json").read_text()) if stage else []
    return {"losses": [line["loss"] for line in metric_lines(run, "step")], "norms": norms}


def double_figures(folder: Path, names: Iterable[str], steps: int, forked: ForkedRanks) -> dict[str, dict[str, Any]]:
    """Losses, and gradients of each parameter, of the first steps of each run on one rank in fp64, without DeepSpeed."""
    jobs = []
    for name in names:
        body = spec_of(name, folder, stage=0, ranks=1, cache=f"cache-{name}-double")
        run = write(folder / f"{name}-double", body, 1)
        jobs.append({"run": str(run), "adapters": name.endswith("lora"), "steps": steps})
    file = folder / "jobs-double.json"
    file.write_text(json.dumps(jobs))
    forked.run(JOBS / "preference_double.py", str(file), ranks=1, timeout=1200)
    return {name: torch.load(folder / f"{name}-double" / "double.pt") for name in names}


def largest(figures: dict[str, list[float]], expected: dict[str, list[float]]) -> tuple[float, float]:
    """The largest relative difference of a loss, and of a norm (0 without norms)."""
    pairs = [list(zip(figures[key], expected[key], strict=False)) for key in ("losses", "norms")]
    return tuple(max((abs(a - b) / abs(b) for a, b in each), default=0.0) for each in pairs)  # type: ignore[return-value]


def largest_of_gradients(gradients: list[dict[str, torch.Tensor]], expected: list[dict[str, torch.Tensor]]) -> float:
    """The largest relative difference of a parameter's gradient at a step: the norm of the difference over the norm of
    what is expected. Infinity where that is 0 and the gradient is not. Both lists have all steps and parameters.
    """
    found = 0.0
    for step, expected_step in zip(gradients, expected, strict=True):
        own, others = ({_plain_name(name): one for name, one in part.items()} for part in (step, expected_step))
        assert own.keys() == others.keys(), own.keys() ^ others.keys()
        for name, other in others.items():
            difference, norm = (own[name].double() - other.double()).norm().item(), other.double().norm().item()
            found = max(found, difference / norm if norm else math.inf if difference else 0.0)
    return found


def _plain_name(name: str) -> str:
    """Without what PEFT's wrapper adds, which TRL trains, and not the harness."""
    return name.removeprefix("base_model.model.").replace(".modules_to_save.default", "")
