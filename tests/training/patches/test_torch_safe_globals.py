# SPDX-License-Identifier: Apache-2.0
"""Contents that a shard may have, as every Python pickles them, and code that is refused and not run. Needs no ranks, seconds."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from deepspeed.runtime.fp16.loss_scaler import LossScaler
from deepspeed.runtime.zero.config import ZeroStageEnum

from harness.errors import UserError
from harness.runtime.checkpoint.safe_load import load_file, load_shard

LOADS = (load_file, load_shard)


class Reduced:
    """Pickled as a call, as Python 3.11.2 does with members of enumerations."""

    def __init__(self, call: Callable[..., Any], *arguments: Any) -> None:
        self.call, self.arguments = call, arguments

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return self.call, self.arguments


@pytest.mark.parametrize("load", LOADS)
def test_members_of_enumerations_are_read_however_they_were_pickled(
    load: Callable[[Path], Any], tmp_path: Path
) -> None:
    torch.save(
        {
            "by name": Reduced(getattr, ZeroStageEnum, "weights"),
            "by value": Reduced(ZeroStageEnum, 2),
            "here": ZeroStageEnum.gradients,
            "scaler": LossScaler(8.0),
            "tensor": torch.arange(3),
        },
        tmp_path / "shard.pt",
    )
    found = load(tmp_path / "shard.pt")
    assert found["by name"] is ZeroStageEnum.weights
    assert found["by value"] is found["here"] is ZeroStageEnum.gradients
    assert found["scaler"].loss_scale == 8.0
    assert found["tensor"].tolist() == [0, 1, 2]


@pytest.mark.parametrize("load", LOADS)
@pytest.mark.parametrize(
    "hostile",
    [
        Reduced(getattr, ZeroStageEnum, "__class__"),
        Reduced(getattr, ZeroStageEnum, "mro"),
        Reduced(getattr, LossScaler, "__init__"),
        Reduced(getattr, "text", "format"),
        Reduced(print, "code was run"),
    ],
    ids=["class", "method", "other-class", "text", "function"],
)
def test_nothing_else_can_be_had(
    load: Callable[[Path], Any], hostile: Reduced, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    torch.save({"tensor": torch.arange(3), "more": hostile}, tmp_path / "shard.pt")
    with pytest.raises(UserError, match="shard"):
        load(tmp_path / "shard.pt")
    assert "code was run" not in capsys.readouterr().out
