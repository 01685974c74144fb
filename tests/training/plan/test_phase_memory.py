# SPDX-License-Identifier: Apache-2.0
"""No phase of a run holds more copies of the model than the plan says. Needs deepspeed; 2 ranks, 3 GB of memory."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from harness.plan.memory_items import Phase
from harness.plan.planner import make_plan
from harness.plan.resolved_run import resolve_run
from harness.plan.tuned_defaults.rules import with_tuned_defaults
from harness.render import render_ds_config
from harness.spec.run_spec import RunSpec
from tests.support.training.forked_ranks import ForkedRanks
from tests.support.training.model_helpers import JOBS, make_big_model

RANKS = 2
CPU = {"device": "cpu"}
WAYS: dict[str, dict[str, Any]] = {
    "all on the host": {"stage": 3, "offload_optimizer": CPU, "offload_param": CPU},
    "stage 2, optimizer on the host": {"stage": 2, "offload_optimizer": CPU},
    "stage 2": {"stage": 2},
    "stage 3": {"stage": 3},
}
PHASES: dict[str, tuple[Phase, ...]] = {
    "load": ("load",),
    "step": ("load", "forward", "backward", "step"),
    "save": ("load", "forward", "backward", "step", "save"),
    "resume": ("load", "resume"),
}
"""A phase as ranks tell it -> those of the plan until then: what was freed may stay in the process for the next."""
BIG = {"hidden_size": 768, "intermediate_size": 2048, "num_hidden_layers": 12, "vocab_size": 8192}
SMALL = {"hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 1, "vocab_size": 512}
"""94 million parameters, and next to none: what a process holds of its own is in both."""
BOUND = 1.03
"""Of the plan, up to 13 copies of the weights: half of one too many shows. Buckets and activations are what is over 1."""
STEPS = 2
"""The first step makes the optimizer's states: they are there beside gradients in the second."""


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    heads = {"num_attention_heads": 8, "num_key_value_heads": 8}
    big, small = (
        make_big_model(tmp_path_factory.mktemp(name), **size, **heads)
        for name, size in (("big", BIG), ("small", SMALL))
    )
    return big, small


@pytest.mark.parametrize("way", WAYS)
def test_no_phase_holds_more_copies_than_planned(
    forked: ForkedRanks, models: tuple[Path, Path], tmp_path: Path, way: str
) -> None:
    (held, planned, copy), (bare, alone, _) = (look(forked, model, tmp_path, WAYS[way]) for model in models)
    copies = {phase: (held[phase] - bare[phase]) / copy for phase in PHASES}
    expected = {phase: (planned[phase] - alone[phase]) / copy for phase in PHASES}
    print({phase: (round(copies[phase], 2), round(expected[phase], 2)) for phase in PHASES})
    assert all(copies[phase] <= BOUND * expected[phase] for phase in PHASES), (copies, expected)
    assert copies["save"] > 0.95 * expected["save"], (copies, expected)


def look(
    forked: ForkedRanks, model: Path, folder: Path, zero: dict[str, Any]
) -> tuple[dict[str, int], dict[str, int], int]:
    """Bytes of the node by phase, measured and planned, and those of the weights."""
    folder = folder / model.name
    first, second = (prepare(folder / name, model, zero, steps) for name, steps in (("a", STEPS), ("b", STEPS + 1)))
    forked.run(JOBS / "phase_memory.py", str(first), ranks=RANKS)
    forked.run(JOBS / "phase_memory.py", str(second), str(first / "checkpoints" / f"step-{STEPS:08d}"), ranks=RANKS)
    runs = [json.loads((place / "told.json").read_text()) for place in (first, second)]
    shutil.rmtree(folder)
    plan = make_plan(with_tuned_defaults(resolve_run(spec(model, zero, 1), world_size=RANKS)), folder, "cpu")
    assert plan.memory
    assert plan.model
    memory = plan.memory
    held = {phase: sum(run[phase]) - sum(run["before"]) for phase in PHASES for run in [runs[phase == "resume"]]}
    planned = {phase: max(memory.host_bytes_at(each) for each in before) for phase, before in PHASES.items()}
    return held, planned, 2 * plan.model.num_parameters


def spec(model: Path, zero: dict[str, Any], steps: int) -> RunSpec:
    body = {
        "model": {"name_or_path": str(model), "tokenizer": "bytes"},
        "data": {"train": "builtin:python-docs", "max_length": 16, "eval_fraction": 0.0},
        "train": {"max_steps": steps, "per_device_train_batch_size": 1, "gradient_checkpointing": True, "seed": 1},
        "optimizer": {"learning_rate": 1e-5},
        "precision": {"bf16": True},
        "zero": zero,
        "checkpoint": {"save_at_end": True},
        "cluster": {"gpu": "cpu"},
        "launch": {"num_gpus": RANKS},
    }
    return RunSpec.model_validate_json(json.dumps(body))


def prepare(folder: Path, model: Path, zero: dict[str, Any], steps: int) -> Path:
    """A run directory as the launching side makes it."""
    for name in ("logs", "status", "checkpoints"):
        (folder / name).mkdir(parents=True)
    run = with_tuned_defaults(resolve_run(spec(model, zero, steps), world_size=RANKS), folder)
    (folder / "spec.resolved.json").write_text(json.dumps(run.to_json()))
    (folder / "ds_config.json").write_text(render_ds_config(run).json_text)
    return folder
