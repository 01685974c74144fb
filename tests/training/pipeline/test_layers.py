# SPDX-License-Identifier: Apache-2.0
"""Inputs that the decoder layers of a stage share: masks as `transformers` makes them, without waits for the device."""

from __future__ import annotations

import traceback
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import LlamaConfig

from harness.runtime.micro_batch import MicroBatch
from harness.runtime.pipeline.layers import SharedInputs, encode_positions

ROWS, LENGTH = 2, 8
CONFIG = LlamaConfig(
    hidden_size=8, num_attention_heads=2, num_hidden_layers=1, attn_implementation="sdpa", sliding_window=3
)


class ScalarReads(TorchDispatchMode):
    """The files that read values from tensors: on a GPU each read waits for the device."""

    def __init__(self) -> None:
        super().__init__()
        self.files: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if "local_scalar_dense" in str(func):
            files = [Path(f.filename) for f in traceback.extract_stack()[:-1]]
            self.files.add(next(f.name for f in reversed(files) if "torch" not in f.parts))
        return func(*args, **(kwargs or {}))


def make_batch(kind: str) -> MicroBatch:
    ids = torch.arange(ROWS * LENGTH).reshape(ROWS, LENGTH)
    positions = torch.cat([torch.arange(3), torch.arange(LENGTH - 3)]).expand(ROWS, LENGTH).contiguous()
    mask = torch.ones(ROWS, LENGTH, dtype=torch.int64)
    mask[0, -3:] = 0
    return MicroBatch(ids, ids, positions if kind == "packed" else None, mask if kind == "padded" else None)


def make_mask(shared: SharedInputs, batch: MicroBatch, kind: str) -> Any:
    shared.update(torch.zeros(ROWS, LENGTH, CONFIG.hidden_size), encode_positions(batch))
    return shared.attention_mask(kind)


def started(*batches: MicroBatch) -> SharedInputs:
    shared = SharedInputs(CONFIG)
    shared.start_step(batches)
    return shared


@pytest.mark.parametrize(
    ("kind", "files"), [("plain", set()), ("packed", {"masking_utils.py"}), ("padded", {"masking_utils.py"})]
)
def test_a_stage_itself_reads_nothing_from_its_device(kind: str, files: set[str]) -> None:
    """`transformers` alone does, where there are documents or padding."""
    batch = make_batch(kind)
    shared = started(batch)
    with ScalarReads() as found:
        make_mask(shared, batch, "full_attention")
    assert found.files == files


@pytest.mark.parametrize("mask", ["full_attention", "sliding_attention"])
@pytest.mark.parametrize(
    "kinds", [("plain",), ("packed",), ("padded",), ("plain", "padded"), ("plain", "packed"), ("packed", "padded")]
)
def test_masks_are_those_of_the_positions(kinds: tuple[str, ...], mask: str) -> None:
    """Without a start of the step the layers read from the positions if rows are padded or packed."""
    batches = [make_batch(kind) for kind in kinds]
    shared = started(*batches)
    for batch in batches:
        ours, expected = make_mask(shared, batch, mask), make_mask(SharedInputs(CONFIG), batch, mask)
        assert (ours is None) is (expected is None)
        assert ours is None or ours.equal(expected)


def test_a_step_forgets_the_last_one() -> None:
    padded, plain = make_batch("padded"), make_batch("plain")
    shared = started(padded)
    assert make_mask(shared, padded, "full_attention") is not None
    shared.start_step([plain])
    assert make_mask(shared, plain, "full_attention") is None
