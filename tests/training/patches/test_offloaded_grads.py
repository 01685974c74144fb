# SPDX-License-Identifier: Apache-2.0
"""Gradients that are held once where the optimizer is on the CPU or on NVMe: bytes, and what is left after a step."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.training.forked_ranks import ForkedRanks

JOB = Path(__file__).parents[1] / "jobs" / "unused_gradients.py"
ON_CPU, ON_NVME = "cpu-offload-single-grad", "nvme-offload-no-grad-swap"


def trainings(name: str, measure: Any) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """(switched off, applied) of each training of each rank."""
    off, on = ([details for _, _, details in measure(name, off=off)["measurements"]] for off in (True, False))
    return [pair for rank_off, rank_on in zip(off, on, strict=True) for pair in zip(rank_off, rank_on, strict=True)]


@pytest.mark.parametrize("name", [ON_CPU, ON_NVME])
def test_no_gradient_is_left_for_the_next_step(name: str, measure: Any) -> None:
    """A parameter that gets none there is stepped with none, where DeepSpeed gives it its last one again."""
    for off, on in trainings(name, measure):
        assert on["left"] == 0 < off["left"]


def test_four_bytes_a_parameter_wait_for_the_step_without_the_patch(measure: Any) -> None:
    for off, on in trainings(ON_CPU, measure):
        assert off["master_grads"] == 4 * off["shard"]
        assert on["master_grads"] == 0


def test_a_step_on_nvme_moves_24_bytes_a_parameter_and_no_gradient(measure: Any) -> None:
    """Masters and both states, read and written; without the patch gradients besides, but for small sub-groups."""
    for off, on in trainings(ON_NVME, measure):
        assert on["grad_files"] == 0 < off["grad_files"]
        assert on["moved"] == pytest.approx([12 * on["shard"]] * 2, rel=0.02)
        assert off["moved"] == [on["moved"][0] + off["grad_files"], on["moved"][1] + off["grad_files"]]


def test_a_part_that_is_not_used_is_not_moved_by_its_last_gradient(forked: ForkedRanks, tmp_path: Path) -> None:
    """DeepSpeed moves it (plain SGD, so no momentum does). Nor is a gradient added to the last one."""
    forked.run(JOB, str(tmp_path / "out.json"), ranks=2)
    found = json.loads((tmp_path / "out.json").read_text())
    assert found["once"] == found["added to"] == 0 < found["twice"]
