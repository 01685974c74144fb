# SPDX-License-Identifier: Apache-2.0
"""Run directories of the preference case, with the settings of TRL's figures."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.support.training import preference_case as case
from tests.support.training.parity_cases import config
from tests.support.training.runtime_helpers import write_run

FIGURES = json.loads((Path(__file__).parent / "trl_figures.json").read_text())
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
        "optimizer": {
            "type": "adamw",
            "learning_rate": case.SETTINGS["learning_rate"],
            "betas": [0.9, 0.999],
            "eps": 1e-8,
            "weight_decay": 0.0,
        },
        "scheduler": {"type": "constant"},
        "precision": {"bf16": False},
        "zero": {"stage": stage},
        "checkpoint": {"save_at_end": False},
        "logging": {"logging_steps": 1},
        **changes,
    }


def write(run: Path, body: dict[str, Any], ranks: int) -> Path:
    """The run directory of a spec."""
    return write_run(run, body, config(body, ranks), world_size=ranks)
