# SPDX-License-Identifier: Apache-2.0
"""The tables of the literature out of the planner's own code. Needs nothing; milliseconds."""

from __future__ import annotations

from math import ceil
from typing import Any

import pytest

from harness.plan.weights.optimizer_states import BytesPerParameter
from tests.support.plan_inputs import memory_of_run, offload, settings

ADAM = {"precision": {"bf16": True}, "zero": {"stage": 3}}


def test_sixteen_bytes_a_parameter() -> None:
    recipe = settings().bytes_per_parameter
    assert recipe == BytesPerParameter(2, 2, 4, 8)
    assert recipe.total == 16
    assert str(recipe) == "2 parameters + 2 gradients + 4 master weights + 8 optimizer states = 16 bytes per parameter"


def test_seven_billion_parameters_are_112_gigabytes() -> None:
    assert settings().bytes_per_parameter.per_rank(7e9, 1, 0) == 112e9


@pytest.mark.parametrize(("stage", "gigabytes"), [(0, 1120), (1, 283.28), (2, 143.83), (3, 4.38)])
def test_seventy_billion_on_256_ranks(stage: int, gigabytes: float) -> None:
    assert settings().bytes_per_parameter.per_rank(70e9, 256, stage) / 1e9 == pytest.approx(gigabytes, abs=0.005)


def test_the_zero_paper_table_1() -> None:
    """7.5 B parameters on 64 ranks: 120, 31.4, 16.6, 1.9 GB."""
    recipe = settings().bytes_per_parameter
    sizes = [recipe.per_rank(7.5e9, 64, stage) / 1e9 for stage in range(4)]
    assert sizes == pytest.approx([120, 31.4, 16.6, 1.9], abs=0.05)


def test_fourteen_gpus_are_the_raw_floor_of_70b() -> None:
    assert ceil(settings().bytes_per_parameter.per_rank(70e9, 1, 0) / 80e9) == 14


@pytest.mark.parametrize(
    ("sections", "total"),
    [
        ({"precision": {"bf16": False}}, 20),
        ({"precision": {"bf16": False}, "zero": {"stage": 0}}, 16),
        ({"optimizer": {"type": "sgd"}}, 8),
        ({"optimizer": {"type": "sgd", "momentum": 0.9}}, 12),
        ({"deepspeed": {"data_types": {"grad_accum_dtype": "fp32"}}}, 18),
        ({"deepspeed": {"bf16": {"bf16_master_weights_and_grads": True, "bf16_optimizer_states": True}}}, 10),
    ],
)
def test_other_recipes(sections: dict[str, Any], total: int) -> None:
    assert settings(**sections).bytes_per_parameter.total == total


@pytest.mark.parametrize("stage", [0, 1, 3])
def test_the_rows_of_a_real_model_add_up_to_the_recipe(stage: int) -> None:
    """Stage 2 keeps every parameter that touches a partition whole, so that its rows are a little above."""
    kinds = {"parameters", "gradients", "gradients_whole", "master", "states"}
    rows = [row for row in memory_of_run("llama-3.1-8b", zero={"stage": stage}).items if row.kind in kinds]
    rows = [row for row in rows if stage != 1 or row.kind != "gradients"]  # those of the step are a slice of the whole
    expected = settings(zero={"stage": stage}).bytes_per_parameter.per_rank(8_030_261_248, 8, stage)
    assert sum(row.bytes for row in rows) == pytest.approx(expected, rel=1e-4)


def test_offload_moves_the_recipe_and_adds_the_gradients_of_the_masters() -> None:
    rows = memory_of_run(zero=offload("cpu")).items
    host = {row.kind for row in rows if row.tier == "host" and "step" in row.phases}
    assert {"master", "states", "gradients", "master_gradients"} <= host
