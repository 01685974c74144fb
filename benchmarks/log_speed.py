# SPDX-License-Identifier: Apache-2.0
"""The speed and the memory of `harness explain --log`.

Makes logs of each kind while it reads them, each in a process of its own: CPU seconds of making and reading less those
of making alone, and the growth of resident memory over that after the imports.

    python benchmarks/log_speed.py [--bytes N] [--only KIND ...] [--write]

`--write` writes the dated table in `benchmarks/results`.
"""

from __future__ import annotations

import argparse
import datetime
import io
import multiprocessing
import platform
import random
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from harness.diagnosis import Diagnosis, diagnose

RESULTS = Path(__file__).parent / "results"
LINES_PER_PIECE = 2000
LAST_LINE = b"worker-1: [rank9]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 1 has a\n"
WORDS = "error failed timeout warning exception traceback aborted memory nan rank token loss shard worker data".split()


def make_plain_lines(step: int, rng: random.Random) -> Iterator[str]:
    """What most jobs print: DeepSpeed's lines, the Trainer's metrics, a progress bar, NCCL, a warning."""
    rank, loss, lr = rng.randrange(64), rng.random() * 3, rng.random() * 1e-4
    bar = "#" * (step % 20)
    yield (
        f"worker-{rank // 8}: [2026-03-01 {step % 24:02}:{step % 60:02}:00,{step % 1000:03}] [INFO] "
        f"[logging.py:107:log_dist] [Rank 0] step={step}, skipped=0, lr=[{lr:.3e}], mom=[(0.9, 0.95)]\n"
    )
    yield f"worker-0: {{'loss': {loss:.4f}, 'grad_norm': {loss * 2:.3f}, 'learning_rate': {lr:.3e}}}\n"
    clock = f"{step % 60:02}:{step % 60:02}<10:00"
    yield f"\r{step % 100:3}%|{bar:<20}| {step}/{10**7} [{clock}, {loss:.2f}it/s]\n"
    yield (
        f"worker-{rank // 8}:{rank}:{rank} [{rank % 8}] NCCL INFO Channel {step % 32:02}/0 : {rank}[{rank}] -> 3[3] "
        "via P2P/IPC\n"
    )
    yield (
        f"worker-0: [2026-03-01 10:00:00,{step % 1000:03}] [INFO] [timer.py:264:stop] epoch=0/micro_step={step}, "
        f"RunningAvgSamplesPerSec={loss:.3f}\n"
    )
    if step % 50 == 0:
        yield f"/opt/lib/site-packages/torch/utils/checkpoint.py:{step % 90}: UserWarning: it is recommended\n"


def make_failure_lines(step: int, rng: random.Random) -> Iterator[str]:
    """10,000 ranks that warn, time out, fail and continue."""
    rank = rng.randrange(10_000)
    prefix = f"worker-{rank // 8}: [rank{rank}]: "
    yield f"{prefix}UserWarning: memory is low, {step} retries failed after a timeout\n"
    yield f"{prefix}[W301 10:16:{step % 60:02}.{step:09} socket.cpp:{rank}] connect to 10.0.{rank % 256}.1 failed\n"
    yield f"worker-{rank // 8}:{rank}:{rank} [{rank % 8}] NCCL WARN socketProgress: Connection closed by peer {step}\n"
    yield f"{prefix}Traceback (most recent call last):\n"
    yield f'{prefix}  File "/data/train.py", line {step % 500}, in load\n{prefix}    row = json.loads(line)\n'
    yield f"{prefix}json.decoder.JSONDecodeError: Expecting value: line 1 column {step} (char {step})\n"
    yield f"{prefix}{{'loss': 2.{step}, 'grad_norm': nan, 'learning_rate': 1e-05}}\n"


def make_different_lines(_step: int, rng: random.Random) -> Iterator[str]:
    """A data set that is printed: no line is like another, and most have words of failures."""
    for _ in range(6):
        words = " ".join(rng.choices(WORDS, k=6))
        yield f"sample {rng.getrandbits(80):x}: {words} {rng.getrandbits(80):x}\n"


KINDS = {
    "plain": make_plain_lines,
    "10,000 ranks with failures": make_failure_lines,
    "all different": make_different_lines,
}


class Log(io.RawIOBase):
    """Lines of one kind, repeated in pieces that differ, up to a size; then the line of a failure."""

    def __init__(self, kind: str, size: int) -> None:
        self.left, self.rng, self.step, self.kind = size, random.Random(1), 0, kind  # noqa: S311
        self.rest, self.is_ended = b"", False

    def read(self, size: int = -1) -> bytes:
        """The next bytes."""
        while len(self.rest) < size and self.left > 0:
            pieces = []
            for _ in range(LINES_PER_PIECE):
                self.step += 1
                pieces.extend(KINDS[self.kind](self.step, self.rng))
            piece = "".join(pieces).encode()
            self.left -= len(piece)
            self.rest += piece
        if self.left <= 0 and not self.is_ended:
            self.rest, self.is_ended = self.rest + b"\n" + LAST_LINE, True
        data, self.rest = self.rest[:size], self.rest[size:]
        return data


def measure_log(kind: str, size: int) -> tuple[float, float, int, Diagnosis]:
    """(CPU seconds of reading, MB of growth, bytes, the diagnosis). Runs in a process of its own."""
    list(KINDS[kind](1, random.Random(1)))  # noqa: S311
    diagnose([Log(kind, 1 << 20)])  # imports and compiled rules
    start = time.process_time()
    log = Log(kind, size)
    while log.read(1 << 18):
        pass
    making = time.process_time() - start
    Path("/proc/self/clear_refs").write_text("5")
    before = _memory("VmRSS")
    start = time.process_time()
    diagnosis = diagnose([Log(kind, size)])
    seconds = time.process_time() - start - making
    return seconds, (_memory("VmHWM") - before) / 1024, diagnosis.num_bytes, diagnosis


def _memory(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name))


def main() -> int:
    """Measure, print and perhaps write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bytes", type=lambda text: int(float(text)), default=10**9)
    parser.add_argument("--only", nargs="*", choices=list(KINDS), default=list(KINDS))
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    today = datetime.date.today()
    rows = [
        f"# Speed of `harness explain --log`, {today}",
        "",
        f"`python benchmarks/log_speed.py --bytes {options.bytes}`, Python {platform.python_version()}, one process.",
        "",
        "| log | GB | CPU s | CPU s per GB | MB of memory | answer |",
        "| --- | ---: | ---: | ---: | ---: | --- |",
    ]
    print("\n".join(rows))
    for kind in options.only:
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            seconds, memory, size, diagnosis = pool.apply(measure_log, (kind, options.bytes))
        answer = f"{diagnosis.cause}, rank {diagnosis.rank}"
        row = f"| {kind} | {size / 1e9:.2f} | {seconds:.1f} | {seconds / size * 1e9:.1f} | {memory:.1f} | {answer} |"
        print(row, flush=True)
        rows.append(row)
    if options.write:
        (RESULTS / f"log-speed-{today}.md").write_text("\n".join(rows) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
