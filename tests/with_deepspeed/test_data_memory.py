"""Preparing a file that is ten times as large takes the same memory: measured in processes of their own."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

from data_memory import measure, write_chats


def test_memory_does_not_grow_with_the_file(tmp_path: Path) -> None:
    peaks = []
    for megabytes in (2, 20):
        file = tmp_path / f"{megabytes}.jsonl"
        write_chats(file, megabytes * 1_000_000)
        found = measure(file, tmp_path / "cache", packing=True)
        assert found["filled"] > 0.99 if megabytes == 20 else found["filled"] > 0.9
        peaks.append(found["anonymous"])
    # twenty megabytes of chats are five million tokens, which as Python integers alone would be 150 MiB
    assert peaks[1] - peaks[0] < 90 << 20
