# SPDX-License-Identifier: Apache-2.0
"""The request for the simulated device, and its wrong inputs. Needs nothing; seconds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from harness.errors import UserError
from harness.plan.simulation.request import build_request
from harness.render.ds_config import render_ds_config
from tests.support.plan_inputs import TINY, plan_of


def request_of(model: str | dict[str, Any] = "llama-3.1-70b", *, ranks: int = 8, **options: Any) -> Any:
    plan = plan_of(model, ranks)
    return build_request(plan, render_ds_config(plan.run).config, Path(), **options)


def refuse(*arguments: Any, **options: Any) -> str:
    with pytest.raises(UserError) as caught:
        request_of(*arguments, **options)
    return caught.value.findings[0].message


def test_two_micro_batches_stand_for_all() -> None:
    body = request_of(rank=5).body
    assert body["ds_config"]["gradient_accumulation_steps"] == 2
    assert body["ds_config"]["train_batch_size"] == 2 * 8
    assert body["rank"] == {"rank": 5, "world_size": 8, "local_rank": 5, "ranks_per_host": 8}


def test_the_model_is_whole_unless_layers_are_cut() -> None:
    assert request_of().body["model_config"]["num_hidden_layers"] == 80
    cut = request_of(layers=4)
    assert (cut.body["model_config"]["num_hidden_layers"], cut.layers, cut.simulated_layers) == (4, 80, 4)


def test_tensors_have_the_memory_that_context_and_nccl_leave() -> None:
    plan = plan_of("llama-3.1-70b")
    capacity = request_of().body["capacity"]
    outside = sum(item.bytes for item in plan.memory.items_of("gpu") if item.kind in ("context", "nccl"))  # type: ignore[union-attr]
    assert capacity == {"cuda": plan.capacity.gpu - outside, "cpu": plan.capacity.host // 8}  # type: ignore[operator]


@pytest.mark.parametrize("rank", [-1, 8])
def test_a_rank_that_is_not_there(rank: int) -> None:
    assert refuse(rank=rank) == f"there is no rank {rank}"


@pytest.mark.parametrize("layers", [0, -3, 81])
def test_layers_that_the_model_does_not_have(layers: int) -> None:
    assert refuse(layers=layers) == f"the model has no {layers} layers"


def test_a_written_configuration_is_taken_as_it_is() -> None:
    assert request_of(TINY, ranks=2).body["model_config"] == TINY
