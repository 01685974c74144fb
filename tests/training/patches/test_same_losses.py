# SPDX-License-Identifier: Apache-2.0
"""Every ZeRO stage, with its optimizer on the device and on the CPU: the losses and weights with all memory and
performance patches off are those with them, to the bit.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from harness.patches.patch_registry import all_patches
from tests.support.training.forked_ranks import ForkedRanks

STEPS = 4
ON_CPU = {"offload_optimizer": {"device": "cpu"}}
CASES = {
    f"zero{stage}{'-cpu' if offload else ''}": {
        "zero": {"stage": stage, **offload},
        "precision": {"bf16": True},
        "train": {"max_steps": STEPS, "per_device_train_batch_size": 1, "gradient_accumulation_steps": 2},
    }
    for stage in range(4)
    for offload in ({}, ON_CPU)
    if stage or not offload  # DeepSpeed offloads nothing at stage 0
}
OFF = {patch.name: "off" for patch in all_patches() if patch.kind in ("memory", "performance")}
APPLIED = {
    "zero3": {"zero3-leaf-params"},
    "zero1-cpu": {"one-pass-adam"},
    "zero2-cpu": {"one-pass-adam"},
    "zero3-cpu": {"zero3-leaf-params", "cpu-offload-single-grad", "one-pass-adam"},
}


@pytest.fixture(scope="module")
def sides(fresh: ForkedRanks, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What `train_stages.py` writes, with the patches off and with all of them, in processes of their own."""
    folder, outcomes = tmp_path_factory.mktemp("stages"), {}
    for name, switches in (("off", OFF), ("auto", "auto")):
        arguments = [json.dumps(CASES), json.dumps(switches), str(folder / f"{name}.json"), str(folder / name)]
        fresh.run(Path(__file__).parents[1] / "jobs" / "train_stages.py", *arguments, ranks=2)
        outcomes[name] = json.loads((folder / f"{name}.json").read_text())
    return outcomes


@pytest.mark.parametrize("case", CASES)
def test_losses_and_weights_are_the_same_to_the_bit(case: str, sides: dict[str, Any]) -> None:
    for off, auto in zip(sides["off"][case], sides["auto"][case], strict=True):
        assert off["losses"] == auto["losses"]
        assert off["weights"] == auto["weights"]
        assert len(set(auto["losses"])) == STEPS


@pytest.mark.parametrize("case", CASES)
def test_only_one_side_had_the_patches(case: str, sides: dict[str, Any]) -> None:
    """Else the comparison would say nothing."""
    expected = APPLIED.get(case, set())
    for off, auto in zip(sides["off"][case], sides["auto"][case], strict=True):
        assert not off["effects"]
        assert {name for name in OFF if auto["states"][name] == "applied"} >= expected
        assert not {name for name in OFF if off["states"][name] == "applied"}
        assert set(auto["effects"]) >= expected
        others = set(auto["states"]) - set(OFF)
        assert {name: auto["states"][name] for name in others} == {name: off["states"][name] for name in others}
