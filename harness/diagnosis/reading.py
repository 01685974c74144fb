"""Bytes -> the few lines that may tell of a failure, in bounded memory and mostly at the speed of a memory search.

A chunk is searched for words that stand in every line of interest; only the lines around a hit are looked at.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import BinaryIO, NamedTuple

_SINGLE = """rror raceback xception xit ail illed imeout NaN nan denied refused ignal bort ssert minimum CANCELLED
    oom OOM memory Xid what(): nterrupt StopIteration nable global_rank_mapping xtension permitted onnect Bus
    exceeded Evicted Elasticity TERMINATION mpirun ABORT nreachable Read-only cannot ndefined ninja: erminat SIG
    reempt xchange_id"""
_PHRASES = (
    *("NCCL WARN", "imed out", "Warning: ", "not found", "No s", "No module", "o route", "in use", "Root Cause"),
    *("n fault", "Out Of", "fallen off", "Could not", "REMOTE HOST", "roken pipe", "Stale file", "low on", "Illegal i"),
    *("thing moved for", "thing is heard of"),
)
WORDS = tuple(word.encode() for word in (*_SINGLE.split(), *_PHRASES))
"""Every line that tells of a failure holds one of these, or stands below one that does."""
CHUNK = 1 << 18
LONGEST = 1 << 12
"""Longer lines are cut: their first 3 KiB and their last one are kept. Patterns are quick on what is left."""
FOLLOWING = 80
"""So many lines below a traceback's first line, or a message's, are read whatever they hold."""
_BELOW = 6
"""And so many below an exception's last line, whose message may go on."""
_RATES = (b"it/s", b"s/it", b"SamplesPerSec=", b"samples/s")
_TALKER = re.compile(rb"(?:[A-Za-z][\w.-]*: )?(?:\[[a-z]+\d+\]: ?)?")
_LOSS = re.compile(rb"oss['\"]?\s?[=:]\s?\d")
_OPENS = re.compile(
    rb"Traceback \(most|alidation error|Root Cause|Error\(s\) in loading|building extension|incompatible |Error: $"
)


class Line(NamedTuple):
    """A line that holds one of the words, or stands below one that does. `number` counts from 1."""

    number: int
    raw: bytes
    progress: int


class Reader:
    """Iterates over the lines of interest of a stream; afterwards `size`, `lines`, `progress` and `tail` are known, and
    `talkers`, the prefixes of lines that show progress.
    """

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self.size = self.lines = self.progress = self.nulls = 0
        self.head = self.tail = b""
        self.talkers: set[bytes] = set()
        self._open = 0

    def __iter__(self) -> Iterator[Line]:
        rest = b""
        while chunk := self._stream.read(CHUNK):
            self.head = self.head or chunk[:16]
            self.size += len(chunk)
            self.nulls += chunk.count(b"\0")
            if b"\r" in chunk:
                chunk = chunk.replace(b"\r", b"\n")
            cut = chunk.rfind(b"\n") + 1
            if not cut:
                rest = _shorter(rest + chunk)
                continue
            whole, rest = rest + chunk[:cut], chunk[cut:]
            self.tail = (self.tail + whole)[-CHUNK:] if len(whole) < CHUNK else whole[-CHUNK:]
            yield from self._block(whole)
        if rest:
            self.tail = (self.tail + rest)[-CHUNK:]
            yield from self._block(rest + b"\n")

    def _block(self, block: bytes) -> Iterator[Line]:
        """The lines of interest of whole lines."""
        marks = _marks(block)
        for mark in marks[:50] if len(self.talkers) < 128 else ():
            found = _TALKER.match(block, mark)
            self.talkers.add(found[0] if found else b"")
        hits = _hits(block)
        position, number, index, passed = 0, self.lines, 0, 0
        while position < len(block):
            if not self._open:
                while index < len(hits) and hits[index] < position:
                    index += 1
                if index == len(hits):
                    break
                start = max(position, block.rfind(b"\n", position, hits[index]) + 1)
                number += block.count(b"\n", position, start)
                position = start
            while passed < len(marks) and marks[passed] < position:
                passed += 1
            end = block.find(b"\n", position)
            raw = _shorter(block[position:end])
            number += 1
            if _OPENS.search(raw):
                self._open = FOLLOWING
            else:
                self._open = max(self._open - 1, _BELOW if b"Error: " in raw or b"Exception: " in raw else 0)
            yield Line(number, raw, self.progress + passed)
            position = end + 1
        self.lines += block.count(b"\n")
        self.progress += len(marks)


def _marks(block: bytes) -> list[int]:
    """Where lines stand that only a job that goes on writes: a rate, a loss."""
    found = set()
    for word in _RATES:
        at = block.find(word)
        while at >= 0:
            found.add(block.rfind(b"\n", 0, at) + 1)
            at = block.find(word, at + 200)
    at = block.find(b"oss")
    while at >= 0:
        if _LOSS.match(block, at):
            found.add(block.rfind(b"\n", 0, at) + 1)
        at = block.find(b"oss", at + 3)
    return sorted(found)


def _hits(block: bytes) -> list[int]:
    """Where the words stand, one place a line and word, in order."""
    found: set[int] = set()
    for word in WORDS:
        at = block.find(word)
        while at >= 0:
            found.add(at)
            end = block.find(b"\n", at)
            at = block.find(word, end) if end >= 0 else -1
    return sorted(found)


def _shorter(raw: bytes) -> bytes:
    return raw if len(raw) <= LONGEST else raw[: LONGEST * 3 // 4] + raw[-LONGEST // 4 :]
