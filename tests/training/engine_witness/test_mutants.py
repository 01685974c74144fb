# SPDX-License-Identifier: Apache-2.0
"""Each mutant is one: DeepSpeed trains on without an error, to other weights. The gradient witness stops at least 27 of the
30 within 3 steps, and no clean run.

HARNESS_NIGHTLY=1 runs each mutant in all ways that it concerns (a minute), else in the first.
"""

from __future__ import annotations

import json
import os
from typing import Any

import pytest

from tests.support.training.forked_ranks import ForkedRanks
from tests.support.training.runtime_helpers import ROOT
from tests.training.engine_witness import held_back_mutants, mutants
from tests.training.jobs import mutant_runs

MUTANTS = (*mutants.MUTANTS, *held_back_mutants.MUTANTS)
EACH = pytest.mark.parametrize("name", [mutant.name for mutant in MUTANTS])
NOT_SEEN = {
    "stage3-last-use-without-gradient": "the gradient is lost inside autograd, before the hooks that the witness reads",
    "boundary-one-micro-batch-early": "the step takes what was computed; the Trainer ends an epoch so, too",
}
LEAST_DISTANCE = 0.02
"""Of the weights from those of the clean run, over the way that the clean run trained in the same 3 steps."""


@pytest.fixture(scope="module")
def answers(forked: ForkedRanks, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The distances of `mutant_runs.py`."""
    out = tmp_path_factory.mktemp("mutants") / "out.json"
    options = [] if os.environ.get("HARNESS_NIGHTLY") else ["--first-ways"]
    forked.run(ROOT / "tests/training/jobs/mutant_runs.py", str(out), *options)
    return dict(json.loads(out.read_text()))


def test_names_and_ways_are_known() -> None:
    assert len(mutants.MUTANTS) == 20
    assert len(held_back_mutants.MUTANTS) == 10
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)
    for mutant in MUTANTS:
        assert mutant.ways
        assert set(mutant.ways) <= set(mutants.WAYS), mutant.name


def test_clean_runs_end_at_the_same_weights_without_an_alarm(answers: dict[str, Any]) -> None:
    for way, outcome in answers["clean"].items():
        assert outcome == {"distance": 0.0, "stop": None, "error": ""}, way


@EACH
def test_a_mutant_trains_other_weights(answers: dict[str, Any], name: str) -> None:
    for way, outcome in answers["mutants"][name].items():
        assert not outcome["error"], way
        assert outcome["distance"] > LEAST_DISTANCE, way


@EACH
def test_the_witness_stops_it_by_numbers(answers: dict[str, Any], name: str) -> None:
    for way, outcome in answers["mutants"][name].items():
        if name in NOT_SEEN:
            assert outcome["stop"] is None, f"{way}: take it out of the list"
        else:
            assert outcome["stop"]["step"] <= mutant_runs.STEPS, way


def test_at_least_27_of_30() -> None:
    assert len(MUTANTS) - len(NOT_SEEN) >= 27
