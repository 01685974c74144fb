# SPDX-License-Identifier: Apache-2.0
"""For how long does a step wait for its rows, drawn when it begins or ahead of it?

    python benchmarks/batch_prefetch.py [--steps 40] [--rounds 5] [--write]

Token files of 1 GiB that are not in the page cache, 64 rows of 4,096 tokens a step in random order, and matrix products
of 0.3 s as the step: a stream of text, and packed chats (`harness/runtime/dataset/batch_prefetch.py` against a load in
line, by turns, the cache dropped before each). What pinned rows spare a GPU only a GPU shows: `harness launch` writes
`seconds_data` into `metrics.jsonl` there too. `--write` puts the table into `benchmarks/results/drawing-DATE.md`.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from harness.runtime.dataset.batch_prefetch import BatchPrefetcher  # noqa: E402
from harness.runtime.dataset.sampler import TrainData  # noqa: E402
from harness.runtime.dataset.token_dataset import BlockDataset, DocumentDataset, TokenDataset  # noqa: E402
from harness.runtime.micro_batch import BatchGeometry  # noqa: E402
from harness.runtime.train_state import DataPosition  # noqa: E402

LENGTH, MICRO, ACCUMULATION = 4096, 8, 8
TOKENS, DOCUMENT = 1 << 28, 256
STEP_SECONDS = 0.3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="drawing-", dir=Path.cwd()) as folder:
        file = Path(folder) / "tokens.npy"
        np.save(file, np.random.default_rng(0).integers(0, 30_000, TOKENS, dtype=np.uint32))
        text = page({kind: compared(kind, file, arguments) for kind in ("text", "packed chats")}, arguments)
    print(text)
    if arguments.write:
        day = datetime.now(UTC).strftime("%Y-%m-%d")
        (ROOT / "benchmarks" / "results" / f"drawing-{day}.md").write_text(text, encoding="utf-8")


def compared(kind: str, file: Path, arguments: argparse.Namespace) -> dict[str, list[float]]:
    """Way -> milliseconds that each step waited, of every round."""
    waits: dict[str, list[float]] = {"drawn at once": [], "drawn ahead": []}
    for turn in range(arguments.rounds):
        for way in waits if turn % 2 == 0 else reversed(waits):
            _drop(file)
            data = TrainData(sequences(kind, file), BatchGeometry(MICRO, ACCUMULATION, 1), 0, turn, True)
            drawing = BatchPrefetcher(data, torch.device("cpu")) if way == "drawn ahead" else data
            waits[way] += [1e3 * wait for wait in _waits(drawing, arguments.steps)]
            if isinstance(drawing, BatchPrefetcher):
                drawing.close()
    return waits


def sequences(kind: str, file: Path) -> TokenDataset:
    """Rows of a stream of text, or of 16 documents each, of which half of the tokens are trained on."""
    tokens = np.load(file, mmap_mode="r")
    if kind == "text":
        return TokenDataset((BlockDataset(tokens, LENGTH),), LENGTH)
    rows = len(tokens) // LENGTH
    edges = np.arange(0, rows * LENGTH + 1, DOCUMENT)
    trained = np.tile(np.arange(DOCUMENT) >= DOCUMENT // 2, rows * LENGTH // DOCUMENT)
    starts = np.arange(0, len(edges), LENGTH // DOCUMENT)
    counts = np.full(rows, LENGTH // 2)
    return TokenDataset((DocumentDataset(tokens, trained, edges, starts, counts, True),), LENGTH)


def _drop(file: Path) -> None:
    descriptor = os.open(file, os.O_RDONLY)
    os.fsync(descriptor)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(descriptor)


def _waits(drawing: Any, steps: int) -> list[float]:
    """Without those of the first step, which waits for the order of the epoch."""
    position, waits = DataPosition(), []
    factor = torch.randn(512, 512)
    for _ in range(steps + 1):
        began = time.perf_counter()
        position = drawing.step(position).position
        waits.append(time.perf_counter() - began)
        began = time.perf_counter()
        while time.perf_counter() - began < STEP_SECONDS:
            factor @ factor
    return waits[1:]


def page(found: dict[str, dict[str, list[float]]], arguments: argparse.Namespace) -> str:
    """The waits as Markdown."""
    lines = [
        f"# What a step waits for its rows, {datetime.now(UTC):%Y-%m-%d}",
        "",
        f"`python benchmarks/batch_prefetch.py --steps {arguments.steps} --rounds {arguments.rounds}`:"
        f" {MICRO * ACCUMULATION} rows of {LENGTH:,} tokens a step of {STEP_SECONDS} s, files of"
        f" {TOKENS * 4 / 2**30:.0f} GiB that are not in memory; torch {version('torch')}, {os.cpu_count()} cores.",
        "",
        "| data | way | ms a step: median | most | share of the step |",
        "| --- | --- | ---: | ---: | ---: |",
    ]
    for kind, ways in found.items():
        for way, waits in ways.items():
            median = statistics.median(waits)
            share = statistics.mean(waits) / (statistics.mean(waits) + 1e3 * STEP_SECONDS)
            lines.append(f"| {kind} | {way} | {median:.1f} | {max(waits):.1f} | {share:.1%} |")
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    main()
