# SPDX-License-Identifier: Apache-2.0
"""The planner's rows against what live DeepSpeed engines hold, to the byte. Needs deepspeed; 2 to 4 processes, a minute.

By day one case of each kind (`plan_grid.cases_by_day`); HARNESS_NIGHTLY=1 counts all of them.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from harness.plan.memory.memory_items import MemoryItem
from harness.plan.weights.trainable_split import split_parameters
from tests.conftest import IS_NIGHT
from tests.support.training.forked_ranks import ForkedRanks
from tests.support.training.plan_grid import CASES, MODELS, MUON, TRAINED, WORLDS, Case, cases_by_day

JOB = Path(__file__).parents[1] / "jobs" / "count_states.py"
Counts = dict[int, list[dict[str, int]]]
IDS = [str(case) for case in CASES]
BY_DAY = cases_by_day()
COUNTED = [i for i, name in enumerate(IDS) if IS_NIGHT or name in BY_DAY]


@pytest.fixture(scope="module")
def counts(forked: ForkedRanks, tmp_path_factory: pytest.TempPathFactory) -> Counts:
    return count_states(forked, tmp_path_factory.mktemp("counts"), COUNTED)


def count_states(forked: ForkedRanks, above: Path, chosen: Sequence[int]) -> Counts:
    """Counted bytes by case, from every rank. One job for each number of ranks trains all its cases in turn."""
    result: Counts = {}
    for world in WORLDS:
        indices = [i for i in chosen if CASES[i].world == world]
        folder = above / f"counts-{world}"
        folder.mkdir()
        work = [
            [MODELS[case.model], case.config(), case.decay, TRAINED[case.trained]]
            for case in (CASES[i] for i in indices)
        ]
        (folder / "cases.json").write_text(json.dumps(work), encoding="utf-8")
        forked.run(JOB, str(folder / "cases.json"), str(folder), ranks=world, timeout=900)
        by_rank = [json.loads((folder / f"{rank}.json").read_text(encoding="utf-8")) for rank in range(world)]
        result |= {i: [rank[n] for rank in by_rank] for n, i in enumerate(indices)}
    return result


def planned(rows: list[MemoryItem], kind: str) -> int:
    return sum(row.bytes for row in rows if row.kind == kind and row.tier in ("gpu", "host"))


def on_disk(rows: list[MemoryItem], kind: str) -> int:
    return sum(row.bytes for row in rows if row.tier == "nvme" and kind == f"nvme_{row.kind}")


def unseen(case: Case) -> int:
    """Bytes of parameters so small that the worker does not count them: 64 bytes, gathered or a frozen shard."""
    if case.stage < 3:
        return 0
    settings = case.settings()
    sizes = (
        -(-p.numel // case.world) * case.world
        for p in case.facts().parameters()
        if p.numel <= settings.param_persistence_threshold
    )
    frozen = (-(-p.numel // case.world) for p in split_parameters(case.facts(), settings.trainable).frozen)
    return sum(size * settings.param_bytes for size in (*sizes, *frozen) if size * settings.param_bytes <= 64)


def test_the_grid_is_large_enough() -> None:
    assert len(CASES) >= 100
    assert 50 <= len(BY_DAY) <= 70
    assert len(set(IDS)) == len(CASES)


@pytest.mark.parametrize("index", COUNTED, ids=[IDS[i] for i in COUNTED])
def test_every_kind_is_predicted_to_the_byte(index: int, counts: Counts) -> None:
    case, by_rank = CASES[index], counts[index]
    assert "failed" not in by_rank[0], by_rank[0]["failed"]
    rows = case.rows()
    kinds = set(by_rank[0]) - {"held"}
    counted = {kind: max(rank[kind] for rank in by_rank) for kind in kinds}
    expected = {kind: planned(rows, kind) for kind in kinds}
    expected |= {kind: on_disk(rows, kind) for kind in kinds if kind.startswith("nvme_")}
    if case.stage in (1, 2) and case.optimizer_at == "cpu":
        expected["largest"] //= 2  # one on the host, one on the device
    assert counted == expected


TOLD_APART = [
    i for i in COUNTED if CASES[i].optimizer_at != "nvme" and not (CASES[i].stage == 3 and CASES[i].more == MUON)
]
"""Buffers of aio are not tensors that can be told apart; Muon keeps up to 256 MiB for the next gather at stage 3."""


@pytest.mark.parametrize("index", TOLD_APART, ids=[IDS[i] for i in TOLD_APART])
def test_nothing_else_is_held_between_steps(index: int, counts: Counts) -> None:
    """All tensors of the process together. Stages 1 and 2 keep a reference to the last gradient that they reduced."""
    case = CASES[index]
    if "failed" in counts[index][0]:
        pytest.fail("not built")
    kinds = {"parameters", "frozen", "master", "states", "master_gradients", "staging", "largest", "accumulated"}
    kinds |= {"unused_states", "momentum"}
    if case.stage == 3:
        kinds |= {"bucket", "gradients", "persistent"}
    if case.settings().uses_bf16_optimizer:
        kinds |= {"gradients"}
    expected = sum(row.bytes for row in case.rows() if row.kind in kinds and "step" in row.phases)
    extra = max(rank["held"] for rank in counts[index]) - expected
    largest = max(p.numel for p in case.facts().parameters()) * 4
    if case.stage in (0, 3):
        assert extra == -unseen(case)
    else:
        assert 0 <= extra <= largest
