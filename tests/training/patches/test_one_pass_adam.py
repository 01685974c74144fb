# SPDX-License-Identifier: Apache-2.0
"""CPU Adam in one pass over memory: the bits of DeepSpeed's order after 32 steps, at every stage."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from harness.hostinfo.machine import can_link_libaio
from harness.patches.one_pass_adam import PATCH, DeviceCopies
from harness.patches.overlapped_step import PATCH as OVERLAPPED
from harness.patches.patch_registry import PatchState, PatchStates
from tests.support.training.forked_ranks import ForkedRanks

JOB = Path(__file__).parents[1] / "jobs" / "one_pass_steps.py"
STEPS = 32


def case(stage: int, clip: float, accumulation: int = 1, place: dict[str, Any] | None = None, **others: Any) -> Any:
    """A spec with the optimizer on the CPU. The norm of the small model is about 1: a `clip` of 0.01 always clips."""
    zero = {"stage": stage, "offload_optimizer": {"device": "cpu", **(place or {})}}
    if stage == 3:
        zero |= {"sub_group_size": others.pop("sub_group_size", 1000), "stage3_param_persistence_threshold": 0}
    train = {"max_steps": STEPS, "per_device_train_batch_size": 1, "max_grad_norm": clip}
    spec = {"zero": zero, "precision": {"bf16": True}, "train": {**train, "gradient_accumulation_steps": accumulation}}
    spec |= {name: others.pop(name) for name in ("deepspeed", "optimizer") if name in others}
    return {"spec": spec, **others}


ADAM = {"type": "adam", "learning_rate": 1e-2, "weight_decay": 0.1}
FP32_SUMS = {"data_types": {"grad_accum_dtype": "fp32"}}
SWAPPED = {"device": "nvme", "buffer_count": 8}
CASES = {
    "zero1": case(1, 0.01, 2),
    "zero1-unclipped": case(1, 0.0, nan_step=7),
    "zero2": case(2, 0.01, nan_step=7),
    "zero2-adam-fp32-sums": case(2, 0.0, 2, optimizer=ADAM, deepspeed=FP32_SUMS),
    "zero3": case(3, 0.01, 2, nan_step=7),
    "zero3-unclipped-adam": case(3, 0.0, optimizer=ADAM),
    "zero3-fp32-sums": case(3, 0.01, 2, deepspeed=FP32_SUMS),
    "zero3-ratio": case(3, 0.01, place={"ratio": 0.5}),
    "zero3-parameters": case(3, 0.01) | {"is_param_on_cpu": True},
}
CASES["zero3-parameters"]["spec"]["zero"]["offload_param"] = {"device": "cpu"}
if can_link_libaio():
    fields: dict[str, Any] = {"nvme": True, "width": 602, "steps": 6, "sub_group_size": 400_000}
    pipelined = {**SWAPPED, "pipeline_read": True, "pipeline_write": True}
    CASES["zero3-nvme"] = case(3, 0.01, 2, SWAPPED, **fields)
    CASES["zero3-nvme-pipelined"] = case(3, 0.0, 1, pipelined, **fields)


@pytest.fixture(scope="module")
def sides(fresh: ForkedRanks, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What `one_pass_steps.py` writes."""
    folder = tmp_path_factory.mktemp("one-pass")
    arguments = [json.dumps(CASES), str(STEPS), str(folder / "out.json"), str(folder / "runs")]
    fresh.run(JOB, *arguments, ranks=2)
    return dict(json.loads((folder / "out.json").read_text()))


@pytest.mark.parametrize("name", CASES)
def test_weights_masters_and_states_are_those_of_the_plain_order(name: str, sides: dict[str, Any]) -> None:
    for plain, one_pass in sides[name]:
        assert plain.pop("patch") == "switched off"
        assert one_pass.pop("patch") == "applied"
        assert plain.pop("overlapped") == one_pass.pop("overlapped") == "not needed"
        assert plain == one_pass
        assert len(set(plain["losses"])) > 3


def test_tensors_of_each_format_are_those_of_three_passes(sides: dict[str, Any]) -> None:
    assert sides["tensors"] == []


def test_a_refusal_of_any_rank_is_said_once_with_their_count(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It was said by the first rank of itself alone: of a host without a compiler nobody heard."""
    from harness.runtime import engine

    monkeypatch.setattr(engine, "install_one_pass", lambda _: "")
    ranks: Any = SimpleNamespace(all_gather_object=lambda mine: [mine, "no compiler", "", "no compiler"])
    patches = PatchStates([PatchState(PATCH, "applied"), PatchState(OVERLAPPED, "not needed")])
    states = engine.install_step(cast("Any", None), patches, ranks, is_main_process=True)
    expected = "on 2 of 4 ranks, first rank 1: no compiler"
    assert capsys.readouterr().err == f"patch one-pass-adam: skipped, {expected}\n"
    assert [(state.state, state.reason) for state in states] == [("skipped", expected), ("not needed", "")]
    ranks.all_gather_object = lambda mine: [mine] * 4
    assert engine.install_step(cast("Any", None), patches, ranks, is_main_process=True) is patches
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(("is_pinned", "expected"), [(False, 0), (True, 2)])
def test_pin_memory_false_locks_no_page(is_pinned: bool, expected: int, monkeypatch: pytest.MonkeyPatch) -> None:
    locked: list[torch.Tensor] = []
    device = SimpleNamespace(pin_memory=lambda buffer: locked.append(buffer) or buffer, Stream=object)
    monkeypatch.setattr("deepspeed.accelerator.get_accelerator", lambda: device)
    copies = DeviceCopies([torch.zeros(numel, dtype=torch.bfloat16) for numel in (3, 7, 5)], is_pinned=is_pinned)
    assert [(buffer.numel(), buffer.dtype) for buffer in copies.buffers] == [(7, torch.bfloat16)] * 2
    assert len(locked) == expected
