"""Gradients that are held once: the same steps to the bit, less memory, a quarter less swapping. 2 ranks, seconds, libaio."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from forked_ranks import ForkedRanks

from harness.hostinfo.machine import can_link_libaio

JOB = Path(__file__).parent / "jobs" / "gradients_once.py"
ON_CPU = {
    "cpu": {"device": "cpu", "bf16": True},
    "cpu, fp32": {"device": "cpu", "bf16": False},
}
ON_NVME: dict[str, dict[str, Any]] = {
    "nvme, pipelined": {"device": "nvme", "bf16": True, "pipelined": True},
    "nvme, one after the other": {"device": "nvme", "bf16": True, "pipelined": False},
    "nvme, fp32": {"device": "nvme", "bf16": False, "pipelined": True},
}
CASES = ON_CPU | (ON_NVME if can_link_libaio() else {})
needs_libaio = pytest.mark.skipif(not can_link_libaio(), reason="needs libaio")


@pytest.fixture(scope="module")
def results(forked: ForkedRanks, tmp_path_factory: pytest.TempPathFactory) -> list[list[dict[str, Any]]]:
    """By rank, by case."""
    folder = tmp_path_factory.mktemp("offload")
    out = folder / "out.json"
    forked.run(JOB, str(out), str(folder), json.dumps(list(CASES.values())), ranks=2)
    found: list[list[dict[str, Any]]] = json.loads(out.read_text())
    return found


def of(case: str, results: list[list[dict[str, Any]]]) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """(held twice, held once) of each rank."""
    found = [rank[list(CASES).index(case)] for rank in results]
    return [(rank["twice"], rank["once"]) for rank in found]


@pytest.mark.parametrize("case", [*ON_CPU, *(pytest.param(name, marks=needs_libaio) for name in ON_NVME)])
def test_steps_are_the_same_to_the_bit(case: str, results: list[list[dict[str, Any]]]) -> None:
    for twice, once in of(case, results):
        for what in ("losses", "norms", "weights"):
            assert once[what] == twice[what]
        assert once["losses"][-1] < once["losses"][0]


@pytest.mark.parametrize("case", [*ON_CPU, *(pytest.param(name, marks=needs_libaio) for name in ON_NVME)])
def test_no_gradient_is_left_for_the_next_step(case: str, results: list[list[dict[str, Any]]]) -> None:
    """A parameter that gets none there is stepped with none, where DeepSpeed gives it its last one again."""
    for twice, once in of(case, results):
        assert once["left"] == 0 < twice["left"]


@pytest.mark.parametrize("case", ON_CPU)
def test_nothing_waits_beside_the_shards_of_all_gradients(case: str, results: list[list[dict[str, Any]]]) -> None:
    for twice, once in of(case, results):
        assert twice["masters_gradients"] == 4 * twice["shard"]
        assert once["masters_gradients"] == 0


@needs_libaio
@pytest.mark.parametrize("case", ON_NVME)
def test_a_step_moves_24_bytes_a_parameter_where_it_was_32(case: str, results: list[list[dict[str, Any]]]) -> None:
    """Of shards a few of which are under a disk block: their gradients were in memory before."""
    for twice, once in of(case, results):
        shard = once["shard"]
        assert once["files"] == 0 < twice["files"]
        for way in ("read", "written"):
            assert once[way] == pytest.approx(12 * shard, rel=0.02)
            assert twice[way] == pytest.approx(16 * shard, rel=0.02)


def test_a_part_that_is_not_used_is_not_moved_by_its_last_gradient(forked: ForkedRanks, tmp_path: Path) -> None:
    """DeepSpeed moves it (plain SGD, so no momentum does)."""
    forked.run(JOB.with_name("unused_gradients.py"), str(tmp_path / "out.json"), ranks=2)
    found = json.loads((tmp_path / "out.json").read_text())
    assert found["once"] == 0 < found["twice"]
