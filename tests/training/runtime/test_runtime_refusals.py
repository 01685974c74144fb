# SPDX-License-Identifier: Apache-2.0
"""Refusals of a checkpoint, without an engine: shards that hold no weights, files that are none."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from harness.errors import UserError
from harness.runtime.checkpoint.consolidate.layouts import find_rank_files, join_pieces
from harness.runtime.checkpoint.safe_load import load_shard


@pytest.mark.parametrize("pieces", [[], [torch.ones(2)], [torch.ones(2), torch.ones(1)]])
def test_shards_that_hold_less_than_a_weight_are_refused(pieces: list[torch.Tensor]) -> None:
    with pytest.raises(UserError) as refused:
        join_pieces(pieces, torch.Size([4]))
    assert refused.value.findings[0].gate == "CK105"


def test_a_weight_is_put_together_over_the_shards_without_their_padding() -> None:
    pieces = [torch.arange(1.0, 3.0), torch.arange(3.0, 8.0)]
    assert join_pieces(pieces, torch.Size([2, 2])).tolist() == [[1.0, 2.0], [3.0, 4.0]]
    assert join_pieces(pieces, torch.Size([0])).numel() == 0


@pytest.mark.parametrize("content", [b"", b"no zip", b"PK\x03\x04 torn"])
def test_a_file_that_is_no_shard_is_refused_by_name(content: bytes, tmp_path: Path) -> None:
    file = tmp_path / "mp_rank_00_model_states.pt"
    file.write_bytes(content)
    with pytest.raises(UserError, match=r"mp_rank_00_model_states.pt` cannot be read") as refused:
        load_shard(file)
    assert refused.value.findings[0].gate == "CK120"


def test_files_are_in_order_of_ranks_and_not_of_letters(tmp_path: Path) -> None:
    for model_rank in range(2):
        (tmp_path / f"mp_rank_{model_rank:02d}_model_states.pt").touch()
        for rank in range(11):
            (tmp_path / f"bf16_zero_pp_rank_{rank}_mp_rank_{model_rank:02d}_optim_states.pt").touch()
    found = find_rank_files(tmp_path)
    assert len(found) == 2
    assert [f.name.split("_")[4] for f in found[1].optimizers] == [str(rank) for rank in range(11)]
    with pytest.raises(UserError, match="no file"):
        find_rank_files(tmp_path / "nothing")
