# SPDX-License-Identifier: Apache-2.0
"""The request for a simulation, and the runs for which there is none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from harness.errors import UserError
from harness.plan.simulation.request import build_request
from harness.render import render_ds_config
from tests.support.plan_inputs import TINY, plan_of


def request_of(tmp_path: Path, rank: int = 0, **sections: Any) -> dict[str, Any]:
    plan = plan_of(TINY, ranks=4, **sections)
    return dict(build_request(plan, render_ds_config(plan.run).config, tmp_path, rank=rank).body)


def test_two_micro_batches_a_step(tmp_path: Path) -> None:
    config = request_of(tmp_path)["ds_config"]
    assert config["gradient_accumulation_steps"] == 2
    assert config["train_batch_size"] == 2 * 4


def test_autotp_keeps_its_batch_keys(tmp_path: Path) -> None:
    """DeepSpeed would compare `train_batch_size` with all ranks, which share batches here, and refuse to start."""
    body = request_of(tmp_path, zero={"stage": 1}, parallel={"tensor_parallel_size": 2})
    assert "train_batch_size" not in body["ds_config"]


@pytest.mark.parametrize(
    "sections",
    [
        {"train": {"torch_compile": True}},
        {"deepspeed": {"compile": {"deepcompile": True}}},
        {"model": {"config": TINY, "attn_implementation": "flash_attention_2"}},
        {"model": {"config": TINY, "trust_remote_code": True}},
        {"model": {"config": TINY, "quantization": {"load_in_4bit": True}}},
    ],
    ids=["compiled", "deepcompile", "kernels of another package", "remote code", "4 bits"],
)
def test_what_cannot_be_simulated_is_refused_before_a_process_starts(tmp_path: Path, sections: dict[str, Any]) -> None:
    with pytest.raises(UserError, match="cannot be simulated with"):
        request_of(tmp_path, **sections)


def test_a_rank_that_is_not_there(tmp_path: Path) -> None:
    assert request_of(tmp_path, rank=3)["rank"]["rank"] == 3
    with pytest.raises(UserError, match="no rank 4"):
        request_of(tmp_path, rank=4)
