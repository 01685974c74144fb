# SPDX-License-Identifier: Apache-2.0
"""`--allow-change` of each key: the step after the resume is that of plain torch with the new value, from the same state.

The engine checks of the run are on, and stop it where they see other settings than those of its spec.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch

from harness.checkpoints.manifest import read_manifest
from tests.support.changed_keys import (
    ALL_AT_ONCE,
    BASE,
    BASES,
    CHANGES,
    SAVED,
    Change,
    is_in_ci,
    is_of_optimizer,
    lay_over,
)
from tests.support.training.changed_settings import (
    difference,
    read_weights,
    take_plain_step,
    write_model,
)
from tests.support.training.forked_ranks import ForkedRanks

JOB = Path(__file__).parents[1] / "jobs" / "allowed_changes.py"
RECORDS = {"records": "prompts", "texts": "prompts", "chats": "chats"}
"""Base -> the file of its records; the others read a text."""
EVERYTHING = os.environ.get("HARNESS_NIGHTLY") == "1"
VISIBLE = 0.02
"""An update with the old value is at least so far away."""

CPU = {"device": "cpu", "pin_memory": False}
ENGINES: dict[str, dict[str, Any]] = {
    "zero2": {"zero.stage": 2},
    "zero0": {"zero.stage": 0},
    "zero1": {"zero.stage": 1},
    "zero3": {"zero.stage": 3},
    "zero2-cpu": {"zero": {"stage": 2, "offload_optimizer": CPU}},
    "zero3-cpu": {"zero": {"stage": 3, "offload_optimizer": CPU, "offload_param": CPU}},
    "zero3-nvme": {"zero": {"stage": 3, "offload_optimizer": {**CPU, "device": "nvme", "nvme_path": "SWAP"}}},
    "pipeline": {"zero.stage": 1, "parallel.pipeline_parallel_size": 2},
    "tensor": {"zero.stage": 1, "parallel.tensor_parallel_size": 2},
}


def _engines(change: Change) -> tuple[str, str]:
    return ("zero0", "zero0") if change.base == "muon" else ("zero2", "zero2")


def _cases() -> list[tuple[str, str, Change]]:
    """(source engine, engine, change)"""
    cases = [(*_engines(change), change) for change in CHANGES if EVERYTHING or is_in_ci(change)]
    moves = [("zero2", "zero3"), ("zero0", "zero0"), ("zero3-cpu", "zero3-cpu"), ("pipeline", "pipeline")]
    cases += [(a, b, ALL_AT_ONCE) for a, b in moves]
    if EVERYTHING:
        cases += [(engine, engine, ALL_AT_ONCE) for engine in ENGINES if (engine, engine) not in moves]
        cases += [(a, b, ALL_AT_ONCE) for a, b in (("zero3", "zero0"), ("zero1", "zero2-cpu"))]
        optimizers = [change for change in CHANGES if change.base == "adamw" and is_of_optimizer(change)]
        cases += [(engine, engine, change) for engine in ENGINES if engine != "zero2" for change in optimizers]
    return cases


def _name(case: tuple[str, str, Change]) -> str:
    source, engine, change = case
    return "--".join((source, engine, change.base, change.name if change is not ALL_AT_ONCE else "all-at-once"))


CASES = {f"{_name(case)}-{number}": case for number, case in enumerate(_cases())}


def write_records(folder: Path) -> None:
    """Prompts and chats of uneven length."""
    numbers = [(i, "+".join([str(i)] * (1 + i % 4))) for i in range(400)]
    prompts = [{"prompt": f"{i}? ", "completion": f"{text}.", "note": f"{text[::-1]}!"} for i, text in numbers]
    chats = []
    for i, text in numbers:
        turns = [
            [{"role": "user", "content": ask}, {"role": "assistant", "content": text}]
            for ask in (f"{i % 90}?", f"{i % 90}!")
        ]
        chats.append({"messages": turns[0], "turns": turns[1]})
    for name, records in (("prompts", prompts), ("chats", chats)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))


@pytest.fixture(scope="module")
def runs(forked: ForkedRanks, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the runs that are saved, SOURCE-BASE, and those that resume from them, by case."""
    folder = tmp_path_factory.mktemp("changes")
    write_records(folder)
    text = folder / "text.txt"
    text.write_text("".join(f"{i} times {i + 7} is {i * (i + 7)}, and no more.\n" for i in range(600)))
    paths = {"model.name_or_path": str(write_model(folder / "model"))}

    def spec(engine: str, base: str, values: dict[str, Any]) -> dict[str, Any]:
        if base in RECORDS:
            paths["data.train"] = str(folder / f"{RECORDS[base]}.jsonl")
        else:
            paths["data.train"] = str(text)
        whole = lay_over(BASE, {**paths, **ENGINES[engine], **BASES[base], **values})
        return json.loads(json.dumps(whole).replace("SWAP", str(folder / "swap")))

    bases = sorted({(source, change.base) for source, _, change in CASES.values()})
    plans = [
        {"folder": str(folder / f"{s}-{b}"), "spec": spec(s, b, {}), "resume": None, "allowed": [], "stop": False}
        for s, b in bases
    ]
    for name, (source, engine, change) in CASES.items():
        resume = folder / f"{source}-{change.base}" / "checkpoints" / f"step-{SAVED:08d}"
        plan = {"spec": spec(engine, change.base, dict(change.values)), "allowed": list(change.keys), "stop": True}
        plans.append({"folder": str(folder / name), "resume": str(resume), **plan})
    (folder / "plan.json").write_text(json.dumps({"cases": plans}))
    forked.run(JOB, str(folder / "plan.json"), timeout=600)
    return folder


@pytest.mark.parametrize("name", CASES)
def test_the_next_step_is_that_of_plain_torch(runs: Path, name: str) -> None:
    source, _, change = CASES[name]
    result = json.loads((runs / name / "result.json").read_text())
    assert "rows" in result, result
    start = runs / f"{source}-{change.base}" / "checkpoints" / f"step-{SAVED:08d}"
    spec = json.loads((runs / name / "spec.resolved.json").read_text())["spec"]
    drawn = torch.load(runs / name / "drawn.pt")
    plain = take_plain_step(start, spec, drawn, result["steps_per_epoch"])
    weights, before = read_weights(runs / name / "checkpoints" / f"step-{SAVED + 1:08d}"), read_weights(start)
    step = {key: weights.get(key) for key in plain}
    apart = difference(step, plain, before)
    assert apart < change.bound
    precision = {key: value for key, value in change.values.items() if key.startswith("precision.")}
    if precision:  # a number format changes the update by rounding alone
        dtype = read_manifest(runs / name / "checkpoints" / f"step-{SAVED + 1:08d}").dtype
        assert dtype == ("bfloat16" if spec["precision"]["bf16"] else "float16")
        assert result["scale"] == precision.get("precision.loss_scale", result["scale"])
    elif change.values:
        old = json.loads((start.parents[1] / "spec.resolved.json").read_text())["spec"]
        rows = torch.load(runs / f"{source}-{change.base}" / "drawn.pt")
        assert difference(take_plain_step(start, old, rows, 1), plain, before) > max(VISIBLE, 2 * change.bound)
