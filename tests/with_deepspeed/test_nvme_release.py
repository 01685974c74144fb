"""Optimizer states on NVMe leave host memory once they are written, and train the same. 1 rank, seconds, libaio."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from deepspeed.runtime.swap_tensor.pipelined_optimizer_swapper import PipelinedOptimizerSwapper
from forked_ranks import ForkedRanks

from harness.hostinfo.machine import can_link_libaio
from harness.runtime.patches import nvme_release
from harness.runtime.patches.nvme_release import DISABLE_VARIABLE, PATCH_NAME, release_written_states

JOB = Path(__file__).parent / "jobs" / "nvme_release.py"
PIPELINED = {"device": "nvme", "pipeline_read": True}
needs_libaio = pytest.mark.skipif(not can_link_libaio(), reason="needs libaio")


def config(**offload: Any) -> dict[str, Any]:
    return {"zero_optimization": {"stage": 3, "offload_optimizer": {**PIPELINED, **offload}}}


@pytest.fixture(scope="module")
def found(forked: ForkedRanks, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("release")
    forked.run(JOB, str(folder / "out.json"), str(folder), ranks=1)
    return dict(json.loads((folder / "out.json").read_text()))


@needs_libaio
@pytest.mark.parametrize("way", ["neither", "read", "write", "both"])
def test_states_are_released_and_steps_are_the_same_to_the_bit(way: str, found: dict[str, Any]) -> None:
    """Four sub-groups. Bare DeepSpeed keeps all states of the first step with either way of pipelining."""
    bare, released = found[f"{way}, bare"], found[f"{way}, released"]
    assert bare["kept"] == [0 if way == "neither" else found["bytes"], 0]
    assert released["kept"] == [0, 0]
    for what in ("losses", "weights", "files"):
        assert released[what] == bare[what] == found["neither, bare"][what]
    assert len(released["files"]) == 12  # masters and both states of each sub-group
    assert released["losses"][-1] < released["losses"][0]


@pytest.fixture
def swapper(monkeypatch: pytest.MonkeyPatch) -> type:
    """DeepSpeed's class, as it was afterwards."""
    monkeypatch.delenv(DISABLE_VARIABLE, raising=False)
    original = PipelinedOptimizerSwapper._complete_swap_out
    monkeypatch.setattr(PipelinedOptimizerSwapper, "_complete_swap_out", original)
    return PipelinedOptimizerSwapper


def test_it_is_installed_where_swapping_is_pipelined_and_twice_is_once(swapper: Any) -> None:
    original = swapper._complete_swap_out
    for other in (config(pipeline_read=False), config(device="cpu"), {"zero_optimization": {"stage": 2}}, {}):
        assert release_written_states(other) is None
        assert swapper._complete_swap_out is original
    assert release_written_states(config()) is None
    assert swapper._complete_swap_out is nvme_release._complete_and_release
    assert release_written_states(config()) is None


def test_another_source_is_left_alone_and_that_is_said(swapper: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def mended(self: Any, swap_out_type: str) -> None:
        self.swap_ops[swap_out_type].wait()

    monkeypatch.setattr(swapper, "_complete_swap_out", mended)
    assert "is not the one that it was written for" in str(release_written_states(config()))
    assert swapper._complete_swap_out is mended
    monkeypatch.delattr(swapper, "_complete_swap_out")
    assert "is not the one that it was written for" in str(release_written_states(config()))


def test_the_switch_leaves_deepspeed_as_it_is(swapper: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    original = swapper._complete_swap_out
    monkeypatch.setenv(DISABLE_VARIABLE, f"another, {PATCH_NAME}")
    assert release_written_states(config()) == f"{DISABLE_VARIABLE} names it"
    assert swapper._complete_swap_out is original
