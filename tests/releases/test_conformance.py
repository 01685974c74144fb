# SPDX-License-Identifier: Apache-2.0
"""The sample of drawn JSONs, and the file of its results."""

from __future__ import annotations

import json
from itertools import islice

import pytest

from tests.conformance.outcome import CLASSES
from tests.releases.conformance import PARSED, SEED, draw_sample, load_results, save_result
from tests.releases.grid_file import load_conformance, load_grid

RESULTS = load_conformance()


def test_the_sample_is_the_same_each_time() -> None:
    first, second = (list(islice(draw_sample("0.18.2"), 60)) for _ in range(2))
    assert first == second
    assert {case.form for case in first} == {"json"}
    assert {case.world for case in first} == {1, 2}
    assert not any("nvme" in json.dumps(case.config) for case in first)


def test_good_settings_that_an_old_release_does_not_read_are_left_out_of_three_in_four() -> None:
    old, new = (list(islice(draw_sample(release), 200)) for release in ("0.14.5", "0.19.8"))
    assert [case.id for case in old] == [case.id for case in new]
    autocast = [sum("torch_autocast" in case.config for case in cases) for cases in (old, new)]
    assert 0 < autocast[0] < autocast[1]


@pytest.mark.parametrize("release", RESULTS["releases"])
def test_the_gates_agree_with_the_release(release: str) -> None:
    result = RESULTS["releases"][release]
    assert result["parsed"] >= PARSED
    assert sum(result["counts"].values()) == result["cases"]
    assert set(result["counts"]) <= set(CLASSES)
    assert result["different"] == {}


def test_the_results_are_of_this_seed_and_of_releases_of_the_grid() -> None:
    assert RESULTS["seed"] == SEED
    assert {"0.14.5", "0.15.0", "0.16.0", "0.17.0", "0.18.0", "0.19.0", "0.19.8"} <= set(RESULTS["releases"])
    assert {"0.14.5", "0.19.8"} <= set(load_grid()["releases"])


def test_a_result_is_a_line(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("tests.releases.conformance.CONFORMANCE_FILE", tmp_path / "results.json")
    for release in ("0.18.10", "0.18.2"):
        save_result(release, {"cases": 1})
    assert list(load_results()["releases"]) == ["0.18.2", "0.18.10"]
    assert len((tmp_path / "results.json").read_text().splitlines()) == 7
