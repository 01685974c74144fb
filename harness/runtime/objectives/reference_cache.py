# SPDX-License-Identifier: Apache-2.0
"""The numbers of a model about each row before it is trained: computed once, by all ranks, and kept in files.

The micro-batches are those of the first epoch, so that a row has the same neighbours and the same padding as in
training, and the cached numbers are those of a model beside the trained one, to the bit. A file is named by a hash of
everything that they depend on. It has a sha256, and its first micro-batch is computed again before it is used: another
GPU, another kernel or another model is noticed by what it says.

Blocks of micro-batches are written as they are done, so that a run that is killed loses one of them at most.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from harness.file_io import parse_json, read_regular, replace_file
from harness.runtime.distributed import Distributed

_BLOCK = 64
"""Micro-batches of a block on each of eight ranks: some minutes of a large model."""
_BLOCK_MICRO_BATCHES = 8 * _BLOCK
_MAX_BYTES = 1 << 30

ComputeRows = Callable[[np.ndarray], np.ndarray]
"""(indices of the rows of a micro-batch) -> (rows, columns) in fp32. A collective: every rank calls it as often."""


def reference_key(parts: dict[str, Any]) -> str:
    """The name of the files of these facts, which JSON can write."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()[:32]


def split_rows(order: np.ndarray, num_rows: int, micro_batch_size: int) -> list[np.ndarray]:
    """The micro-batches of an epoch in this order, and then those of the rows that it leaves out."""
    whole = len(order) // micro_batch_size * micro_batch_size
    left_out = np.setdiff1d(np.arange(num_rows), order[:whole])
    rest = [left_out[i : i + micro_batch_size] for i in range(0, len(left_out), micro_batch_size)]
    return [*order[:whole].reshape(-1, micro_batch_size), *rest]


def compute_reference(
    folder: Path,
    micro_batches: Sequence[np.ndarray],
    num_columns: int,
    compute: ComputeRows,
    distributed: Distributed,
    on_progress: Callable[[str], None] = lambda _: None,
) -> np.ndarray:
    """(rows, `num_columns`) in fp32 on every rank, from `folder` or computed. A collective.

    The main process reads and writes; blocks that are there and whole are not computed again.
    """
    num_rows = int(max(part.max() for part in micro_batches)) + 1
    values = np.full((num_rows, num_columns), np.nan, dtype=np.float32)
    starts = range(0, len(micro_batches), _BLOCK_MICRO_BATCHES)
    blocks = [_read_block(folder, i) if distributed.is_main_process else None for i in range(len(starts))]
    present = distributed.all_gather_object([block is not None for block in blocks])[0]
    if any(present):
        probe = present.index(True)
        part = micro_batches[starts[probe]]
        own = compute(part)
        stored = blocks[probe]
        is_same = stored is None or np.array_equal(stored[: len(part)], own)
        if distributed.any_rank(not is_same):
            if distributed.is_main_process:
                text = f"reference: {folder} is of another model, device or kernel: it is computed again"
                print(text, file=sys.stderr, flush=True)  # noqa: T201
            present = [False] * len(starts)
    for number, start in enumerate(starts):
        block_batches = micro_batches[start : start + _BLOCK_MICRO_BATCHES]
        if not present[number]:
            on_progress(f"computing the reference's log-probabilities, {start:,} of {len(micro_batches):,} batches")
            block = _compute_block(block_batches, compute, distributed)
            if distributed.is_main_process:
                _write_block(folder, number, block)
        else:
            block = _broadcast(blocks[number], distributed)
        values[np.concatenate(block_batches)] = block
    return values


def _compute_block(micro_batches: Sequence[np.ndarray], compute: ComputeRows, distributed: Distributed) -> np.ndarray:
    """Every rank takes each of so many; one that has fewer computes the first again, since others gather in it."""
    rank, size = distributed.rank, distributed.world_size
    own: dict[int, Any] = {}
    for at in range(0, len(micro_batches), size):
        index = at + rank
        values = compute(micro_batches[index if index < len(micro_batches) else 0])
        if index < len(micro_batches):
            own[index] = values.tolist()
    gathered = distributed.all_gather_object([[index, values] for index, values in own.items()])
    by_index = {index: values for part in gathered for index, values in part}
    return np.concatenate([np.array(by_index[i], dtype=np.float32) for i in range(len(micro_batches))])


def _broadcast(block: np.ndarray | None, distributed: Distributed) -> np.ndarray:
    """The main process's block on every rank; fp32 numbers survive JSON."""
    rows = distributed.all_gather_object(None if block is None else block.tolist())[0]
    return np.array(rows, dtype=np.float32)


def _block_file(folder: Path, number: int) -> Path:
    return folder / f"block-{number:06d}.json"


def _write_block(folder: Path, number: int, block: np.ndarray) -> None:
    """A digest and a row of numbers a row. A full disk costs the next run time, and not this one."""
    body = json.dumps(block.tolist())
    with contextlib.suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
        replace_file(_block_file(folder, number), f"{hashlib.sha256(body.encode()).hexdigest()}\n{body}\n")


def _read_block(folder: Path, number: int) -> np.ndarray | None:
    """A block that is there and whole; None for any other."""
    try:
        digest, body, _ = read_regular(_block_file(folder, number), _MAX_BYTES).decode().split("\n")
        if hashlib.sha256(body.encode()).hexdigest() != digest:
            return None
        return np.array(parse_json(body), dtype=np.float32)
    except (OSError, ValueError):
        return None
