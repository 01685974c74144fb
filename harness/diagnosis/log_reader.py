# SPDX-License-Identifier: Apache-2.0
"""Bytes -> the few lines that may report a failure, in bounded memory and mostly at the speed of a memory search.

A chunk is searched for words that every such line contains. Only the lines around a hit are read.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import BinaryIO, NamedTuple

_SINGLE_WORDS = """rror raceback xception xit ail illed imeout NaN nan denied refused ignal bort ssert minimum CANCELLED
    oom OOM memory Xid what(): nterrupt StopIteration nable global_rank_mapping xtension permitted onnect Bus
    exceeded Evicted Elasticity TERMINATION mpirun ABORT nreachable Read-only cannot ndefined ninja: erminat SIG
    reempt xchange_id"""
_PHRASES = (
    *("NCCL WARN", "imed out", "Warning: ", "not found", "No s", "No module", "o route", "in use", "Root Cause"),
    *("n fault", "Out Of", "fallen off", "Could not", "REMOTE HOST", "roken pipe", "Stale file", "low on", "Illegal i"),
    "ending the run",
)
FAILURE_WORDS = tuple(word.encode() for word in (*_SINGLE_WORDS.split(), *_PHRASES))
"""Every line that reports a failure contains one of these, or follows a line that does."""
CHUNK_BYTES = 1 << 18
MAX_LINE_BYTES = 1 << 12
"""Longer lines are cut to their first 3 KiB and their last one, so that patterns stay quick."""
LINES_AFTER_TRACEBACK = 80
"""Lines that are read after the first line of a traceback or of a message."""
_LINES_AFTER_EXCEPTION = 6
"""Lines that are read after an exception's last line, whose message may continue, and after a frame: a traceback has
no limit.
"""
_RATE_WORDS = (b"it/s", b"s/it", b"SamplesPerSec=", b"samples/s")
_WRITER_PREFIX = re.compile(rb"(?:[A-Za-z][\w.-]*: )?(?:\[[a-z]+\d+\]: ?)?")
_LOSS = re.compile(rb"oss['\"]?\s?[=:]\s?\d")
_MESSAGE_START = re.compile(
    rb"Traceback \(most|alidation error|Root Cause|Error\(s\) in loading|building extension|incompatible |Error: $"
)


class LogLine(NamedTuple):
    """A line that may report a failure. `number` counts from 1."""

    number: int
    raw: bytes
    progress: int


class LogReader:
    """Iterates over the lines of a stream that may report a failure. Afterwards `size`, `lines`, `progress`, `tail` and
    `writers`, the prefixes of lines that show progress, are complete.
    """

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self.size = self.lines = self.progress = self.nulls = 0
        self.head = self.tail = b""
        self.writers: set[bytes] = set()
        self._lines_to_keep = 0

    def __iter__(self) -> Iterator[LogLine]:
        rest = b""
        while chunk := self._stream.read(CHUNK_BYTES):
            self.head = self.head or chunk[:16]
            self.size += len(chunk)
            self.nulls += chunk.count(b"\0")
            if b"\r" in chunk:
                chunk = chunk.replace(b"\r", b"\n")
            end = chunk.rfind(b"\n") + 1
            if not end:
                rest = _truncate(rest + chunk)
                continue
            block, rest = rest + chunk[:end], chunk[end:]
            self.tail = (self.tail + block)[-CHUNK_BYTES:] if len(block) < CHUNK_BYTES else block[-CHUNK_BYTES:]
            yield from self._scan_block(block)
        if rest:
            self.tail = (self.tail + rest)[-CHUNK_BYTES:]
            yield from self._scan_block(rest + b"\n")

    def _scan_block(self, block: bytes) -> Iterator[LogLine]:
        """The lines of a block that may report a failure."""
        marks = _find_progress(block)
        for mark in marks[:50] if len(self.writers) < 128 else ():
            match = _WRITER_PREFIX.match(block, mark)
            self.writers.add(match[0] if match else b"")
        hits = _find_failure_words(block)
        position, number, index, num_passed = 0, self.lines, 0, 0
        while position < len(block):
            if not self._lines_to_keep:
                while index < len(hits) and hits[index] < position:
                    index += 1
                if index == len(hits):
                    break
                start = max(position, block.rfind(b"\n", position, hits[index]) + 1)
                number += block.count(b"\n", position, start)
                position = start
            while num_passed < len(marks) and marks[num_passed] < position:
                num_passed += 1
            end = block.find(b"\n", position)
            raw = _truncate(block[position:end])
            number += 1
            if _MESSAGE_START.search(raw):
                self._lines_to_keep = LINES_AFTER_TRACEBACK
            else:
                may_continue = b"Error: " in raw or b"Exception: " in raw or b'  File "' in raw
                self._lines_to_keep = max(self._lines_to_keep - 1, _LINES_AFTER_EXCEPTION if may_continue else 0)
            yield LogLine(number, raw, self.progress + num_passed)
            position = end + 1
        self.lines += block.count(b"\n")
        self.progress += len(marks)


def _find_progress(block: bytes) -> list[int]:
    """The starts of lines that only a working job writes: a rate, a loss."""
    starts = set()
    for word in _RATE_WORDS:
        position = block.find(word)
        while position >= 0:
            starts.add(block.rfind(b"\n", 0, position) + 1)
            position = block.find(word, position + 200)
    position = block.find(b"oss")
    while position >= 0:
        if _LOSS.match(block, position):
            starts.add(block.rfind(b"\n", 0, position) + 1)
        position = block.find(b"oss", position + 3)
    return sorted(starts)


def _find_failure_words(block: bytes) -> list[int]:
    """The positions of the words, one a line and word, in order."""
    positions: set[int] = set()
    for word in FAILURE_WORDS:
        position = block.find(word)
        while position >= 0:
            positions.add(position)
            end = block.find(b"\n", position)
            position = block.find(word, end) if end >= 0 else -1
    return sorted(positions)


def _truncate(raw: bytes) -> bytes:
    return raw if len(raw) <= MAX_LINE_BYTES else raw[: MAX_LINE_BYTES * 3 // 4] + raw[-MAX_LINE_BYTES // 4 :]
