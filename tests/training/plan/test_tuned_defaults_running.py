# SPDX-License-Identifier: Apache-2.0
"""Tuned defaults on real engines of 2 ranks: the same losses, fewer bytes, fewer Python calls. Seconds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.training.forked_ranks import ForkedRanks

JOB = Path(__file__).parents[1] / "jobs" / "tuned_defaults_many.py"
CASES = {
    "stage 1": {"stage": 1, "tied": False, "chunk": 0, "checkpointing": False},
    "stage 2 in chunks": {"stage": 2, "tied": True, "chunk": 13, "checkpointing": False},
    "stage 3": {"stage": 3, "tied": False, "chunk": 0, "checkpointing": False},
    "stage 3 in chunks, recomputed": {"stage": 3, "tied": False, "chunk": 13, "checkpointing": True},
    "stage 3 in chunks, tied": {"stage": 3, "tied": True, "chunk": 13, "checkpointing": False},
}


@pytest.fixture(scope="module")
def results(forked: ForkedRanks, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Of every case, from one start of two ranks."""
    out = tmp_path_factory.mktemp("choices") / "out.json"
    forked.run(JOB, str(out), json.dumps(list(CASES.values())), timeout=600)
    return dict(zip(CASES, json.loads(out.read_text()), strict=True))


@pytest.mark.parametrize("name", CASES)
def test_losses_are_equal_within_rounding(name: str, results: dict[str, Any]) -> None:
    default, chosen = results[name]["default"], results[name]["chosen"]
    assert chosen["losses"] == pytest.approx(default["losses"], rel=1e-6)
    assert chosen["norm"] == pytest.approx(default["norm"], rel=1e-5)
    assert chosen["chosen"]
    assert not default["chosen"]


@pytest.mark.parametrize("name", ["stage 1", "stage 2 in chunks"])
def test_stages_1_and_2_send_a_quarter_less(name: str, results: dict[str, Any]) -> None:
    """2 units instead of 3: a reduction to the owner and the gather of the weights."""
    default, chosen = results[name]["default"], results[name]["chosen"]
    assert 0.6 < chosen["bytes"] / default["bytes"] <= 0.70
    assert default["collectives"].get("reduce", 0) == 0
    assert chosen["collectives"]["reduce"] >= 2  # one to each rank


def test_stage_3_sends_no_more(results: dict[str, Any]) -> None:
    assert results["stage 3"]["chosen"]["bytes"] <= results["stage 3"]["default"]["bytes"]


@pytest.mark.parametrize("name", [name for name in CASES if "3" in name])
def test_stage_3_runs_fewer_python_functions(name: str, results: dict[str, Any]) -> None:
    assert results[name]["chosen"]["calls"] < 0.65 * results[name]["default"]["calls"]


@pytest.mark.parametrize("name", [name for name in CASES if "3" in name])
def test_the_head_is_given_back(name: str, results: dict[str, Any]) -> None:
    assert not results[name]["chosen"]["whole_head_left"]
