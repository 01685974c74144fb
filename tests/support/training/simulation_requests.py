# SPDX-License-Identifier: Apache-2.0
"""Requests for `simulation_worker` about shipped recipes, with a model of 2 layers and width 64.

DeepSpeed moves no tensor below 1 MiB to a disk (`MIN_AIO_BYTES`): `LARGE` is for recipes with NVMe. Simulated
tensors hold no memory, and cost the same at every size.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from harness.check.machine_findings import check_for_plan, find_plan_device
from harness.cli.console import exit_on_errors
from harness.plan.planner import make_plan
from harness.plan.simulation.request import build_request
from harness.render.ds_config import render_ds_config

RECIPES = Path(__file__).parents[3] / "ds_configs"
SMALL = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 256,
}
LARGE = SMALL | {
    "hidden_size": 4096,
    "intermediate_size": 8192,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 32768,
}


def small_request(recipe: str, overrides: Sequence[str] = (), *, races: bool = False) -> dict[str, Any]:
    """The request for rank 0 of a recipe with these overrides, at 64 tokens a row: settings of the whole model. One with
    NVMe is `LARGE`, in sub-groups of 8 million elements.
    """
    is_large = "nvme" in recipe
    overrides = ["zero.sub_group_size=8000000", *overrides] if is_large else overrides
    checked = check_for_plan(
        str(RECIPES / f"{recipe}.yaml"), ["data.max_length=64", *overrides], None, None, here=False
    )
    run = exit_on_errors(checked, "There is no request")
    plan = make_plan(run, RECIPES.parent, find_plan_device(here=False), with_alternatives=False)
    body = build_request(plan, render_ds_config(plan.run).config, RECIPES.parent, races=races).body
    return {**body, "model_config": {**body["model_config"], **(LARGE if is_large else SMALL)}}
