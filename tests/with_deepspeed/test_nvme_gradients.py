"""Gradients that stay in memory: the same steps to the bit, a quarter less to read and write. 2 ranks, seconds, libaio."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from forked_ranks import ForkedRanks

from harness.facts.machine import libaio_links

pytestmark = pytest.mark.skipif(not libaio_links(), reason="needs libaio")
JOB = Path(__file__).parent / "jobs" / "nvme_gradients.py"
CASES = {
    "pipelined": {"bf16": True, "pipelined": True},
    "one after the other": {"bf16": True, "pipelined": False},
    "fp32": {"bf16": False, "pipelined": True},
}


@pytest.fixture(scope="module")
def results(forked: ForkedRanks, tmp_path_factory: pytest.TempPathFactory) -> list[list[dict[str, Any]]]:
    """By rank, by case."""
    folder = tmp_path_factory.mktemp("nvme")
    out = folder / "out.json"
    forked.run(JOB, str(out), str(folder), json.dumps(list(CASES.values())), ranks=2)
    found: list[list[dict[str, Any]]] = json.loads(out.read_text())
    return found


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("rank", [0, 1])
def test_steps_are_the_same_to_the_bit(case: str, rank: int, results: list[list[dict[str, Any]]]) -> None:
    found = results[rank][list(CASES).index(case)]
    for what in ("losses", "norms", "weights"):
        assert found["kept"][what] == found["written"][what]
    assert found["kept"]["losses"][-1] < found["kept"]["losses"][0]


@pytest.mark.parametrize("case", CASES)
def test_a_step_moves_24_bytes_a_parameter_where_it_was_32(case: str, results: list[list[dict[str, Any]]]) -> None:
    """Of shards a few of which are under a disk block: their gradients were in memory before."""
    for rank in results:
        written, kept = (rank[list(CASES).index(case)][name] for name in ("written", "kept"))
        shard = kept["shard"]
        assert kept["files"] == 0 < written["files"]
        for way in ("read", "written"):
            assert kept[way] == pytest.approx(12 * shard, rel=0.02)
            assert written[way] == pytest.approx(16 * shard, rel=0.02)
