# SPDX-License-Identifier: Apache-2.0
"""Streams of any kind and size are read, in bounded memory. Needs nothing; seconds."""

from __future__ import annotations

import gzip
import io
import tracemalloc

import pytest

from harness.diagnosis import diagnose
from harness.diagnosis.reader.log_reader import LogReader
from tests.support.tracebacks import diagnose_text

STEP = b"worker-0: step 12 loss: 2.31 and some words more so that the line is as long as such lines are 012345\n"
OOM = b"worker-1: [rank9]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 1 has a total"
ENDED_WELL = (
    "[2026-03-01 10:00:00,000] [INFO] [launch.py:351:main] Process 4711 exits successfully.\n"
    "[2026-03-01 10:00:00,100] [INFO] [launch.py:351:main] Process 4712 exits successfully.\n"
)


class Long(io.RawIOBase):
    """`count` times the same bytes, then others; nothing of it is kept."""

    def __init__(self, repeated: bytes, count: int, last: bytes) -> None:
        self.block, self.left, self.last = repeated, count, last

    def read(self, _size: int = -1) -> bytes:
        if self.left:
            self.left -= 1
            return self.block
        last, self.last = self.last, b""
        return last


def test_a_long_log_takes_little_memory_and_its_end_is_found():
    diagnose([Long(STEP, 1, OOM + b"\n")])  # compiles the rules
    tracemalloc.start()
    diagnosis = diagnose([Long(STEP * 2000, 30, OOM + b"\n")])
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (diagnosis.cause, diagnosis.rank, diagnosis.host) == ("LG001", 9, "worker-1")
    assert (diagnosis.num_lines, diagnosis.line) == (60_001, 60_001)
    assert peak < 3e6 < diagnosis.num_bytes


def test_many_different_errors_take_little_memory():
    blocks = "".join(f"[rank{i % 4}]: SomeError: nobody knows {'abcdefgh'[i % 8]} {i:b}\n" for i in range(10_000))
    tracemalloc.start()
    diagnosis = diagnose_text(blocks)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (diagnosis.cause, diagnosis.rank, diagnosis.line) == ("", 0, 1)
    assert peak < 10e6


@pytest.mark.parametrize("size", [1 << 20, 5 << 20])
@pytest.mark.parametrize("where", ["before", "after"])
def test_a_line_of_a_megabyte(size, where):
    long = b"x" * size
    text = long + b"\n" + OOM + b"\n" if where == "before" else OOM + b" " + long + b"\nend\n"
    assert diagnose_text(text).cause == "LG001"


def test_carriage_returns_colours_and_broken_text():
    text = b" 5%|#  | 12/100 [00:01<00:10, 5.2it/s]\r 6%|#  | 13/100\r\x1b[31m[rank2]: \x1b[1mOSError: [Errno 28] No space left on device\x1b[0m \xff\xfe\r\n"
    diagnosis = diagnose_text(text)
    assert (diagnosis.cause, diagnosis.rank, diagnosis.confidence) == ("LG050", 2, "certain")
    assert "\x1b" not in diagnosis.message


@pytest.mark.parametrize(
    ("text", "state"),
    [
        (b"", "empty"),
        (b"\x7fELF" + bytes(5000), "not text"),
        (gzip.compress(b"text " * 500, mtime=0), "no failure seen"),
        (("utf-16 text\n" * 20).encode("utf-16"), "no failure seen"),
        (ENDED_WELL, "completed"),
        ("some words\nand more\n", "no failure seen"),
        (b"no newline at the end", "no failure seen"),
    ],
)
def test_what_is_no_failure(text, state):
    diagnosis = diagnose_text(text)
    assert (diagnosis.state, diagnosis.cause) == (state, "")
    assert diagnosis.title


def test_a_failure_that_the_job_outlived_is_none():
    diagnosis = diagnose_text(
        "[rank0]: OSError: [Errno 28] No space left on device\n" + STEP.decode() * 50 + ENDED_WELL
    )
    assert diagnosis.state == "completed"
    assert "survived 1 earlier error line" in diagnosis.notes[0]


def test_an_op_that_is_waited_for():
    diagnosis = diagnose_text(
        "[rank0]: ready\nUsing /root/.cache/torch_extensions/py311_cpu as PyTorch extensions root...\n" * 2
    )
    assert (diagnosis.cause, diagnosis.confidence) == ("LG026", "likely")


def test_the_numbers_are_set_against_the_plan():
    plan = {"gpu_peak_bytes": 40 * 2**30, "gpu_capacity_bytes": 80 * 2**30, "gpu_peak_phase": "backward"}
    text = (
        "[rank1]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 1 has a total capacity of "
        "39.39 GiB of which 1.20 GiB is free. Including non-PyTorch memory, this process has 38.10 GiB memory in use. "
        "Of the allocated memory 37.00 GiB is allocated by PyTorch, and 3.10 GiB is reserved by PyTorch but unallocated."
    )
    notes = diagnose_text(text, plan=plan).notes
    assert notes[0] == "the plan expects 40.00 GiB per GPU at the peak, in backward"
    assert "this GPU has 39.39 GiB, the plan assumed 80.00 GiB" in notes[1]
    assert "37.00 GiB and requested 2.00 GiB more, less than the plan" in notes[2]
    assert "fragmentation" in notes[3]
    assert len(notes) == 4


def test_several_logs_are_compared_by_their_clocks():
    first = b"[2026-03-01 10:00:05,000] [rank0]: OSError: [Errno 28] No space left on device\n"
    second = b"[2026-03-01 10:00:01,000] [rank1]: MemoryError: \n"
    diagnosis = diagnose([io.BytesIO(first), io.BytesIO(second)])
    assert (diagnosis.cause, diagnosis.rank, diagnosis.line) == ("LG004", 1, 2)


@pytest.mark.parametrize(
    "bar",
    [
        " 10%|#    | 10/100 [00:10<01:30,  1.00it/s]",
        " 10%|#    | 10/100 [00:20<03:00,  2.00s/it]",
        "Generating train split: 900 examples [00:01, 800.1 examples/s]",
    ],
)
def test_a_message_that_continues_the_line_of_a_bar_is_a_line_of_its_own(bar):
    steps = "".join(f" {i:2}%|#    | {i}/100 [00:{i}<01:30,  1.00it/s]\n" for i in range(10))
    text = (
        f'{steps}{bar}Traceback (most recent call last):\n  File "train.py", line 3, in load\n    a()\nKeyError: "b"\n'
    )
    reader = LogReader(io.BytesIO(text.encode()))
    first = next(iter(reader))
    assert (first.number, first.raw) == (11, b"Traceback (most recent call last):")
    assert diagnose_text(text).message == 'KeyError: "b"'


def test_a_message_that_continues_a_bar_may_begin_with_a_number_and_end_the_log():
    bars = "".join(f" {i:2}%|#    | {i}/100 [00:{i}<01:30,  1.00it/s]\n" for i in range(10))
    (line,) = LogReader(io.BytesIO(f"{bars} 10%|#    | 10/100 [00:10<01:30,  1.00it/s]2 tasks failed".encode()))
    assert (line.number, line.raw) == (11, b"2 tasks failed")
