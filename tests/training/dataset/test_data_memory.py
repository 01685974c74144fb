# SPDX-License-Identifier: Apache-2.0
"""Preparing a file that is ten times as large takes the same memory: measured in processes of their own."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from benchmarks.data_memory import measure, write_chats
from harness.runtime.dataset.mmap_array import AppendArray, release_pages


def test_memory_does_not_grow_with_the_file(tmp_path: Path) -> None:
    peaks = []
    for megabytes in (1, 10):
        file = tmp_path / f"{megabytes}.jsonl"
        write_chats(file, megabytes * 1_000_000)
        found = measure(file, tmp_path / "cache", packing=True)
        assert found["filled"] > 0.98 if megabytes == 10 else found["filled"] > 0.9
        peaks.append(found["anonymous"])
    # ten megabytes of chats are 2.5 million tokens, which as Python integers alone would be 75 MiB
    assert peaks[1] - peaks[0] < 45 << 20


def test_what_was_read_of_a_mapped_file_is_given_back(tmp_path: Path) -> None:
    with AppendArray(tmp_path / "ids.npy", np.uint16) as file:
        file.append(np.arange(1 << 24, dtype=np.uint16))
        ids = file.open_mapped()
    before = _of_files()
    total = int(ids.sum(dtype=np.int64))
    assert _of_files() - before > 30 << 20
    release_pages(ids, None, np.zeros(3))
    assert _of_files() - before < 4 << 20
    assert int(ids.sum(dtype=np.int64)) == total


def _of_files() -> int:
    """Bytes of mapped files that count as this process's."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("RssFile")).split()[1]) * 1024
