# SPDX-License-Identifier: Apache-2.0
"""Tables of model states against the figures of the literature. Needs nothing; milliseconds."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from harness.cli.app import build_app
from harness.errors import UserError
from harness.plan.search.state_tables import MODEL_SIZES, RECIPES, tabulate_peak, tabulate_states


def test_the_table_of_the_zero_paper_for_70b_on_256() -> None:
    row = next(row for row in tabulate_states() if row.name == "70B" and row.recipe_name == "mixed")
    assert row.total == 1120e9
    sizes = [row.per_gpu[256, stage] / 1e9 for stage in range(4)]
    assert sizes == pytest.approx([1120, 283.28, 143.83, 4.375], abs=0.005)


def test_mixed_precision_saves_nothing_until_it_is_sharded() -> None:
    """16 bytes a parameter either way; what a rank keeps whole is half."""
    rows = {row.recipe_name: row for row in tabulate_states({"13B": 13e9})}
    assert rows["fp32"].total == rows["mixed"].total == 208e9
    assert rows["fp32"].per_gpu[64, 1] == pytest.approx(8 * 13e9 + 8 * 13e9 / 64)
    assert rows["mixed"].per_gpu[64, 1] == pytest.approx(4 * 13e9 + 12 * 13e9 / 64)
    assert rows["mixed, 8-bit states"].total == 130e9


@pytest.mark.parametrize(
    ("words", "name", "total"),
    [
        ("momentum", "mixed, one state", 12),
        ("none", "mixed, no state", 8),
        ("momentum --precision fp32", "fp32, one state", 12),
        ("none --precision fp32", "fp32, no state", 8),
    ],
)
def test_optimizers_with_one_state_or_none(words: str, name: str, total: int) -> None:
    arguments = ["size", *"--params 7e9 --gpus 8 --format json --states".split(), *words.split()]
    row = json.loads(CliRunner().invoke(build_app(arguments), arguments).stdout)["states"][0]
    assert (row["recipe"], row["bytes_per_parameter"], row["bytes"]) == (name, total, total * 7e9)


@pytest.mark.parametrize(("gpu", "first"), [("H100-80GB", 16), ("GB200-186GB", 8), ("GH200-96GB", 12)])
def test_numbers_of_gpus_are_hosts_of_the_kind(gpu: str, first: int) -> None:
    assert next(iter(tabulate_peak(70e9, "mixed", gpu, 10**9).rows[3].per_gpu)) == first


def test_every_size_has_every_recipe() -> None:
    rows = tabulate_states()
    assert [(row.name, row.recipe_name) for row in rows] == [(size, name) for size in MODEL_SIZES for name in RECIPES]


def test_a_measured_peak_decides_between_16_and_24() -> None:
    """70 B: 14 GPUs hold the states alone; with 22 GB measured beside them 16 do not, and 24 do."""
    table = tabulate_peak(70e9, "mixed", "H100-80GB", 22 * 10**9)
    assert table.raw_floor_gpus == 14
    stage3 = table.rows[3]
    assert list(stage3.per_gpu) == [16, 24, 32]
    assert [size / 1e9 for size in stage3.per_gpu.values()] == pytest.approx([92, 68.667, 57], abs=0.001)
    assert stage3.min_gpus == 20
    assert [row.min_gpus for row in table.rows[:3]] == [None, None, None]


@pytest.mark.parametrize("parameters", [1.3e9, 8e9, 13e9])
@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("peak", [1, 10 * 10**9, 40 * 10**9])
def test_the_least_number_is_the_least(parameters: float, recipe: str, peak: int) -> None:
    table = tabulate_peak(parameters, recipe, "A100-80GB", peak)
    for row in table.rows:
        if row.min_gpus is None:
            assert RECIPES[recipe].per_rank(parameters, 10**6, row.stage) + peak > table.capacity
            continue
        assert RECIPES[recipe].per_rank(parameters, row.min_gpus, row.stage) + peak <= table.capacity
        if row.min_gpus > 1:
            assert RECIPES[recipe].per_rank(parameters, row.min_gpus - 1, row.stage) + peak > table.capacity


@pytest.mark.parametrize("peak", [0, 80 * 10**9, 10**15])
def test_a_peak_that_leaves_no_room_is_refused(peak: int) -> None:
    with pytest.raises(UserError, match="peak"):
        tabulate_peak(70e9, "mixed", "H100-80GB", peak)
