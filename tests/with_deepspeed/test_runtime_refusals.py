"""What a checkpoint is refused for, without an engine: changed settings, and shards that hold no weights."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from harness.errors import Refused
from harness.runtime.checkpoint import _check_continuity
from harness.runtime.shards import _from_vector

SAVED = {
    "data.max_length": 64,
    "data.shuffle": True,
    "train.seed": 1,
    "optimizer": {"type": "AdamW", "params": {"lr": 0.001, "betas": [0.9, 0.95]}},
    "zero.round_robin_gradients": False,
}
CHANGED = {
    "data.max_length": 128,
    "data.shuffle": False,
    "train.seed": 2,
    "optimizer": {"type": "AdamW", "params": {"lr": 0.002, "betas": [0.9, 0.95]}},
    "zero.round_robin_gradients": True,
}


def test_the_same_settings_go_on() -> None:
    now = {**SAVED, "optimizer": {"type": "AdamW", "params": {"lr": 0.001, "betas": (0.9, 0.95)}}}
    _check_continuity(Path("step-1"), SAVED, now)  # a tuple is the list that the manifest made of it


@pytest.mark.parametrize("key", CHANGED)
def test_a_changed_setting_is_refused_by_name(key: str) -> None:
    with pytest.raises(Refused) as refused:
        _check_continuity(Path("step-1"), SAVED, {**SAVED, key: CHANGED[key]})
    finding = refused.value.findings[0]
    assert finding.gate == "CK107"
    assert finding.key == key
    assert str(SAVED[key]) in finding.message
    assert str(CHANGED[key]) in finding.message


@pytest.mark.parametrize("pieces", [[torch.Tensor()], [torch.ones(2)], [torch.ones(2), torch.ones(1)]])
def test_shards_that_hold_less_than_a_weight_are_refused(pieces: list[torch.Tensor]) -> None:
    with pytest.raises(Refused) as refused:
        _from_vector(pieces, 0, torch.Size([4]))
    assert refused.value.findings[0].gate == "CK105"


def test_a_weight_is_put_together_over_the_shards() -> None:
    pieces = [torch.arange(3.0), torch.arange(3.0, 8.0)]
    assert _from_vector(pieces, 1, torch.Size([2, 2])).tolist() == [[1.0, 2.0], [3.0, 4.0]]
    assert _from_vector(pieces, 0, torch.Size([0])).numel() == 0
