# SPDX-License-Identifier: Apache-2.0
"""The answers of small copies: those of a child process are the table's, and runs show that they are right.

All types at night, a few in CI; a type takes three to six seconds, two runs as long.
"""

from __future__ import annotations

import json
import os
import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.model_table import FIELDS
from benchmarks.model_table_runs import WAYS, draw, look_at_run, losses_of, write_model
from harness.facts import model_table
from harness.hostinfo import model_answers
from harness.hostinfo.model_answers import QUESTIONS
from harness.runtime.model_questions import quantized_layers
from harness.runtime.model_questions.rank_pair import MachineError, ask_ranks, find_error
from tests.support.training.forked_ranks import ForkedRanks

NIGHTLY = os.environ.get("HARNESS_NIGHTLY") == "1"
CAUSAL = [name for name in model_table.read_table()["rows"] if model_table.holds(name, "causal")]


RUNS = [(way, kind) for way in WAYS if way != "alone" for answer in (True, False) for kind in draw(way, answer=answer)]
"""Ten drawn types of each answer to each question that a run can show."""
DRAWN = CAUSAL if NIGHTLY else random.Random(1).sample(CAUSAL, 1)  # noqa: S311


@pytest.mark.parametrize("family", DRAWN)
def test_a_child_answers_as_the_table_says(family: str) -> None:
    answers = model_answers._run_worker(json.dumps({"model_type": family, **FIELDS.get(family, {})}))["answers"]
    found = {question: answers[question][0] for question in QUESTIONS}
    assert found == {question: model_table.holds(family, question) for question in QUESTIONS}


@pytest.mark.parametrize(("way", "family"), RUNS if NIGHTLY else [("pipeline", "smollm3"), ("apart", "opt")])
def test_a_run_shows_what_the_table_says(way: str, family: str, forked: ForkedRanks, tmp_path: Path) -> None:
    write_model(family, tmp_path / "model")
    alone = losses_of("alone", tmp_path / "model", tmp_path, forked)
    if isinstance(alone, str):
        pytest.skip(f"this type does not train here: {alone[-200:]}")
    outcome = look_at_run(way, tmp_path / "model", tmp_path, alone, forked)
    assert outcome.holds is model_table.holds(family, way), outcome


def test_ranks_that_reach_no_peer_say_nothing_of_a_model(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "none0")
    with pytest.raises(MachineError):
        find_error(ask_ranks(lambda _: {}, 2, tmp_path))
    assert find_error([{"error": "gloo: closed"}, {"error": "KeyError: 'head'"}]) == "KeyError: 'head'"


@pytest.mark.parametrize("names", [(), ("layers.0.q",)])
def test_weights_that_were_not_found_are_no_yes(names: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quantized_layers, "layer_matrices", lambda _: [(name, None) for name in names])
    monkeypatch.setattr(quantized_layers, "ask_ranks", lambda *_: [{"whole": [], "trains": True}])
    small: Any = SimpleNamespace(saved=Path(), model=None, folder=Path())
    assert quantized_layers.ask(small).holds is (True if names else None)
