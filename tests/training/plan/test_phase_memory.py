# SPDX-License-Identifier: Apache-2.0
"""No phase of a run holds more copies of the model than the plan says, and malloc keeps no more freed blocks. Needs
deepspeed; 2 ranks, 4 GB of memory.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness.plan.memory.memory_estimate import MemoryEstimate
from harness.plan.memory.memory_items import Phase
from harness.plan.planner import make_plan
from harness.plan.tuned_defaults.rules import with_tuned_defaults
from harness.render import render_ds_config
from harness.run.resolved_run import resolve_run
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
    "stage 0": {"stage": 0},
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
"""Of the plan without freed blocks, up to 13 copies of the weights: half of one too many shows. Buckets and activations are what is over 1."""
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


@pytest.mark.parametrize(
    "way",
    ["all on the host", *(pytest.param(way, marks=pytest.mark.nightly) for way in WAYS if way != "all on the host")],
)
def test_no_phase_holds_more_copies_than_planned(
    forked: ForkedRanks, models: tuple[Path, Path], tmp_path: Path, way: str
) -> None:
    (held, planned, copy), (bare, alone, _) = (look(forked, model, tmp_path, WAYS[way]) for model in models)
    copies = {phase: (held[phase] - bare[phase]) / copy for phase in PHASES}
    expected = {phase: (planned[phase] - alone[phase]) / copy for phase in PHASES}
    print({phase: (round(copies[phase], 2), round(expected[phase], 2)) for phase in PHASES})
    assert all(copies[phase] <= BOUND * expected[phase] for phase in PHASES), (copies, expected)
    assert copies["save"] > 0.95 * expected["save"], (copies, expected)


def test_malloc_keeps_as_much_as_planned(forked: ForkedRanks, models: tuple[Path, Path], tmp_path: Path) -> None:
    """Gathered layers and the buckets are below glibc's threshold: what they leave stays with the process. How many
    gaps are left differs from run to run: 0.89 to 0.95 of the plan in six runs.
    """
    zero = WAYS["stage 3"]
    folders = [prepare(tmp_path / model.name, model, zero, STEPS) for model in models]
    big, small = (train(forked, folder, "--keep-freed-blocks")["step"] for folder in folders)
    memory, bare = (make_memory(model, zero, tmp_path) for model in models)
    planned = highest(memory, "step") - highest(bare, "step")
    in_use = highest(without_freed_blocks(memory), "step") - highest(without_freed_blocks(bare), "step")
    print({"held": big - small, "planned": planned, "in use": in_use})
    assert 0.8 * planned < big - small < BOUND * planned
    assert big - small > 1.1 * in_use, "freed blocks go back to the kernel: the plan's item `heap` is out of date"


def look(
    forked: ForkedRanks, model: Path, folder: Path, zero: dict[str, Any]
) -> tuple[dict[str, int], dict[str, int], int]:
    """Bytes of the node by phase, measured and planned, and those of the weights; freed blocks go back."""
    folder = folder / model.name
    first, second = (prepare(folder / name, model, zero, steps) for name, steps in (("a", STEPS), ("b", STEPS + 1)))
    trained = train(forked, first)
    resumed = train(forked, second, "--resume", str(first / "checkpoints" / f"step-{STEPS:08d}"))
    shutil.rmtree(folder)
    memory = without_freed_blocks(make_memory(model, zero, folder))
    held = {phase: (resumed if phase == "resume" else trained)[phase] for phase in PHASES}
    return held, {phase: highest(memory, phase) for phase in PHASES}, model_bytes(model)


def train(forked: ForkedRanks, folder: Path, *options: str) -> dict[str, int]:
    """What both ranks held at most in each phase, without what they held before they loaded anything."""
    forked.run(JOBS / "phase_memory.py", str(folder), *options, ranks=RANKS)
    told = json.loads((folder / "told.json").read_text())
    return {phase: sum(peaks) - sum(told["before"]) for phase, peaks in told.items()}


def make_memory(model: Path, zero: dict[str, Any], folder: Path) -> MemoryEstimate:
    plan = make_plan(with_tuned_defaults(resolve_run(spec(model, zero, 1), world_size=RANKS)), folder, "cpu")
    assert plan.memory
    return plan.memory


def without_freed_blocks(memory: MemoryEstimate) -> MemoryEstimate:
    return replace(memory, items=tuple(item for item in memory.items if item.kind != "heap"))


def highest(memory: MemoryEstimate, phase: str) -> int:
    """The planned peak until the end of a phase."""
    return max(memory.host_bytes_at(each) for each in PHASES[phase])


def model_bytes(model: Path) -> int:
    return sum(file.stat().st_size for file in model.glob("*.safetensors"))


def spec(model: Path, zero: dict[str, Any], steps: int) -> RunSpec:
    body = {
        "model": {"name_or_path": str(model), "tokenizer": "bytes"},
        "data": {"train": "builtin:python-docs", "max_length": 16, "eval_fraction": 0.0},
        "scheduler": {"type": "constant"},  # the resume has one step more
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
