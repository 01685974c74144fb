# SPDX-License-Identifier: Apache-2.0
"""Bytes -> the few lines that may report a failure, in bounded memory.

Most lines of a log differ from others in digits alone. Each kind of line is looked at once: may it report a failure,
does it show progress? Further lines of a kind cost a look-up.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from itertools import compress
from typing import NamedTuple

from harness.diagnosis.diagnosis_types import LogFacts
from harness.diagnosis.reader.log_archives import NULL_RUN, Readable
from harness.diagnosis.reader.log_facts import FactReader
from harness.diagnosis.reader.metric_series import MetricSeries
from harness.diagnosis.reader.phase_markers import PHASE_WORDS, PhaseMarks, begins_phase
from harness.diagnosis.rules.line_matcher import may_match_rule

_WORDS = """rror raceback xception xit ailed ailure FAIL illed imeout NaN denied refused ignal bort ssert CANCELLED OOM
    nterrupt StopIteration global_rank_mapping xtension estart vict reempt spawned MainThread"""
BOX_END = "\u2570\u2500\u2500"
"""Of the box that rich draws around a traceback; its exception is below."""
_PHRASES = (
    *("NCCL WARN", "imed out", "Warning: ", "Root Cause", "n fault", "urrent thread", "Thread 0x", 'File "'),
    *("LOAD REPORT", "newly init", "Process ", "Killing subprocess", "\u2771 ", "\u2502 /"),
)
FAILURE_WORDS = tuple(word.encode() for word in (*_WORDS.split(), *_PHRASES, BOX_END))
"""A line with one of these is read, as is one with a literal of a rule, and one that follows such a line: an exception
that no rule knows, what the launcher says, stacks.
"""
CHUNK_BYTES = 1 << 18
MAX_LINE_BYTES = 1 << 11
"""Longer lines are cut to their first 1.5 KiB and their last half, so that patterns stay quick."""
LINES_AFTER_TRACEBACK = 80
"""Lines that are read after the first line of a traceback or of a message."""
_LINES_AFTER_EXCEPTION = 6
"""Lines that are read after an exception's last line, whose message may continue, and after a frame: a traceback has
no limit.
"""
MAX_EQUAL_LINES = 1 << 14
"""Lines of one kind that are read: one a rank of a large job."""
_MAX_EQUAL_NOTICES = 256
"""The same for warnings, and for lines without a failure word."""
_MAX_LINES_READ = 150_000
"""Lines that are read in full. Of a log with more, the last few of each chunk are."""
_LINES_OF_CHUNK = 32
_SHORT_TAIL_BYTES = 1 << 8
_MAX_KINDS = 20_000
_MAX_KIND_BYTES = 4 << 20
_MAX_COMPARED_WITH_RULES = 100_000
"""Kinds that are compared with the literals of rules. A log with more prints its data, and the words alone count."""
_NOTICE_WORDS = (b"arning", b"WARN", b"INFO", b"DEBUG")
_RATE_WORDS = (b"it/s", b"s/it", b"SamplesPerSec=", b"samples/s", b"tokens/s", b"tok/s", b"elapsed time per iteration")
_PREPARATION_RATE = b"examples/s"
_WRITER_PREFIX = re.compile(rb"(?:[A-Za-z][\w.-]*: )?(?:\[[a-z]+\d+\]: ?)?")
_LOSS = re.compile(rb"oss['\"]?(?:\s?[=:]\s?\d|\s+\d+\.\d)")
_MESSAGE_START = re.compile(
    rb"Traceback \(most|alidation error|Root Cause|Error\(s\) in loading|building extension|incompatible |Error: ?$|"
    rb"most recent call first|: \"MainThread\"$|LOAD REPORT|mismatch \w+ +values|different metadata than|"
    rb"^-+> \d+ "
)
_COLOUR = re.compile(rb"\x1b\[[0-9;?]*[A-Za-z]")
_CONTINUED_BAR = re.compile(rb"((?:it/s|s/it|examples/s)[^\]\r\n]{0,200}\])(?=\S)")
"""A progress bar whose line another message continues, most often a traceback."""
_CONTINUED_KIND = re.compile(_CONTINUED_BAR.pattern.replace(rb"(?=\S)", rb"(?=\s*\S)"))
"""Its kind: the other message may begin with a number, which a kind lacks."""
_CHARS_OF_LINE = 128
"""A longer line counts as several of those that are read in full."""
_DIGITS = b"0123456789"


class LogLine(NamedTuple):
    """A line that may report a failure. `number` counts from 1."""

    number: int
    raw: bytes
    progress: int
    phases: PhaseMarks | None = None


class LogReader:
    """Iterates over the lines of a stream that may report a failure. Afterwards `size`, `lines`, `progress`, `tail` and
    `writers`, the prefixes of lines that show progress, are complete. `is_sampled`: not all such lines were read.
    `first_line` counts the lines of the logs that were read before.
    """

    def __init__(self, stream: Readable, kinds: LineKinds | None = None, first_line: int = 0) -> None:
        self._stream, self.name, self.first_line = stream, getattr(stream, "name", ""), first_line
        self.size = self.lines = self.progress = self.nulls = 0
        self.head = self.tail = b""
        self.writers: set[bytes] = set()
        self.is_sampled = False
        self.phases, self._fact_reader, self.series = PhaseMarks(), FactReader(), MetricSeries()
        self._kinds = kinds or LineKinds()
        self._lines_to_keep = self._num_read = 0

    def __iter__(self) -> Iterator[LogLine]:
        rest = b""
        while chunk := self._stream.read(CHUNK_BYTES):
            if chunk.endswith(b"\r"):
                chunk += self._stream.read(1)
            self.head = self.head or chunk[:512]
            self.size += len(chunk)
            if b"\0" in chunk:
                chunk = NULL_RUN.sub(b"", chunk)
                self.nulls += chunk.count(b"\0")
            if b"\x1b[" in chunk:
                chunk = _COLOUR.sub(b"", chunk)
            if b"\r" in chunk:  # the end of a line of Windows, or that of a progress bar, which gets a line of its own
                chunk = chunk.replace(b"\r\n", b"\n").replace(b"\r", b"\r\n")
            end = chunk.rfind(b"\n") + 1
            if not end:
                rest = _truncate(rest + chunk)
                continue
            block, rest = rest + chunk[:end], chunk[end:]
            yield from self._scan_block(block)
        if rest:
            yield from self._scan_block(rest + b"\n")
        self.phases.finish_block()

    @property
    def facts(self) -> LogFacts:
        """The facts that the log states of its job, as far as it was read."""
        return self._fact_reader.facts

    def forget_tail(self) -> None:
        """Another log follows: keep little of the end of this one."""
        self.head, self.tail = b"", self.tail[-_SHORT_TAIL_BYTES:]

    def _scan_block(self, block: bytes) -> Iterator[LogLine]:
        """The lines of a block that may report a failure."""
        self.is_sampled = self._num_read > _MAX_LINES_READ
        lines, found = self._kinds.find(block, is_sampled=self.is_sampled)
        if found.continued_bars:
            for index in found.continued_bars:
                lines[index] = _CONTINUED_BAR.sub(b"\\1\r\n", lines[index])
            block = b"\n".join([*lines, b""])
            lines, found = self._kinds.find(block, is_sampled=self.is_sampled)
        self.tail = (self.tail + block)[-CHUNK_BYTES:] if len(block) < CHUNK_BYTES else block[-CHUNK_BYTES:]
        marks, hits, beginnings = found.marks, self._kinds.take_hits(found), found.beginnings
        self.phases.start_block(lines, beginnings, marks)
        self._fact_reader.add_block(block)
        self.series.add_block(lines, marks, beginnings, self.lines)
        for index in marks[:50] if len(self.writers) < 128 else ():
            match = _WRITER_PREFIX.match(lines[index])
            self.writers.add(match[0] if match else b"")
        last = self._num_read + (_LINES_OF_CHUNK if self.is_sampled else len(lines) * MAX_LINE_BYTES)
        if self.is_sampled:
            hits, self._lines_to_keep = _last_of(hits, lines), 0
        index = 0 if self._lines_to_keep else hits[0] if hits else len(lines)
        num_returns = block.count(b"\r")
        returns = [i for i in range(index, len(lines)) if lines[i].endswith(b"\r")] if num_returns else []
        while index < len(lines) and self._num_read < last:
            raw = _truncate(lines[index].removesuffix(b"\r"))
            self._keep_lines_after(raw)
            self._num_read += 1 + len(raw) // _CHARS_OF_LINE
            number = self.lines + index + 1 - (num_returns - len(returns)) - bisect_left(returns, index)
            self.phases.advance(index)
            yield LogLine(number, raw, self.progress + bisect_left(marks, index), self.phases)
            index += 1
            if not self._lines_to_keep:
                next_hit = bisect_left(hits, index)
                index = hits[next_hit] if next_hit < len(hits) else len(lines)
        self.lines += len(lines) - num_returns
        self.progress += len(marks)

    def _keep_lines_after(self, raw: bytes) -> None:
        """Decide how many lines after this one are read."""
        may_continue = b"Error: " in raw or b"Exception: " in raw or b'File "' in raw or b"\xe2\x94\x82 /" in raw
        kept = max(self._lines_to_keep - 1, _LINES_AFTER_EXCEPTION if may_continue else 0)
        self._lines_to_keep = LINES_AFTER_TRACEBACK if _MESSAGE_START.search(raw) else kept


class _FoundLines(NamedTuple):
    """The indexes of the lines of a block that are looked at. `failures` have kinds that may report a failure."""

    marks: Sequence[int]
    failures: Sequence[int]
    beginnings: Sequence[int]
    continued_bars: Sequence[int]
    kinds: Sequence[bytes]


_PROGRESS, _FAILURE, _PHASE, _BAR = 1, 2, 4, 8
"""Roles of a kind of line; a kind may have several."""
_SELECTORS = {role: bytes(bool(roles & role) for roles in range(256)) for role in (_PROGRESS, _FAILURE, _PHASE, _BAR)}
"""Tables of `bytes.translate`: 1 where a byte of roles has the role."""


class LineKinds:
    """The kinds of lines of a job's logs so far. A kind is a line without its digits."""

    def __init__(self) -> None:
        self._roles: dict[bytes, int] = {}
        """Of each known kind."""
        self._known_bytes = self._num_compared = 0
        self._lines_left: dict[bytes, int] = {}
        """Of kinds that may report a failure: how many more lines are read."""

    def find(self, block: bytes, *, is_sampled: bool) -> tuple[list[bytes], _FoundLines]:
        """The lines of a block, and the indexes of those that show progress, that may report a failure, that begin a
        phase, and of progress bars that another message continues; of new kinds that may report a failure only the last
        ones, if the log is only sampled.
        """
        lines = block.split(b"\n")[:-1]
        kinds = block.translate(None, _DIGITS).split(b"\n")[:-1]
        try:
            roles = bytes(map(self._roles.__getitem__, kinds))
        except KeyError:
            self._add_kinds(lines, kinds, is_sampled=is_sampled)
            roles = bytes(map(self._roles.__getitem__, kinds))
        marks, failures, beginnings, bars = (_indexes_of(role, roles) for role in (_PROGRESS, _FAILURE, _PHASE, _BAR))
        return lines, _FoundLines(marks, failures, beginnings, bars, kinds)

    def take_hits(self, found: _FoundLines) -> list[int]:
        """The indexes of the lines that may report a failure and are to be read: so many of each kind."""
        hits = list[int]()
        for index in found.failures:
            kind = found.kinds[index]
            if left := self._lines_left.get(kind, 0):
                self._lines_left[kind] = left - 1
                hits.append(index)
        return hits

    def _add_kinds(self, lines: Sequence[bytes], kinds: Sequence[bytes], *, is_sampled: bool) -> None:
        """Remember the roles of the new kinds among these, each by a line of it."""
        if len(self._roles) > _MAX_KINDS or self._known_bytes > _MAX_KIND_BYTES:
            self._roles, self._known_bytes = {}, 0
        examples = {kind: line for kind, line in zip(kinds, lines, strict=True) if kind not in self._roles}
        new, lines = list(examples), list(examples.values())
        self._known_bytes += sum(map(len, new))
        text = b"\n".join(lines)
        roles = dict.fromkeys(new, 0)
        rates = {*_find_words(text, _RATE_WORDS), *(match.start() for match in _LOSS.finditer(text))}
        for index in _lines_of(sorted(rates), lines):
            roles[new[index]] |= _PROGRESS
        rates.update(_find_words(text, (_PREPARATION_RATE,)))
        for index in _lines_of(sorted(rates), lines):
            roles[new[index]] |= _BAR if _CONTINUED_KIND.search(new[index]) else 0
        if self._num_compared < _MAX_COMPARED_WITH_RULES:
            for index in _lines_of(_find_words(text, PHASE_WORDS), lines):
                roles[new[index]] |= _PHASE if begins_phase(lines[index]) else 0
        first = -2 * _LINES_OF_CHUNK if is_sampled else 0
        self._find_failures(new[first:], lines[first:])
        for kind in self._lines_left.keys() & roles.keys():
            roles[kind] |= _FAILURE
        self._roles.update(roles)

    def _find_failures(self, kinds: Sequence[bytes], lines: Sequence[bytes]) -> None:
        """Remember which of the new kinds may report a failure."""
        if len(self._lines_left) > _MAX_KINDS:
            self._lines_left.clear()
        with_words = _lines_of(_find_words(b"\n".join(lines), FAILURE_WORDS), lines)
        for index in with_words:
            is_notice = any(word in lines[index] for word in _NOTICE_WORDS)
            self._lines_left.setdefault(kinds[index], _MAX_EQUAL_NOTICES if is_notice else MAX_EQUAL_LINES)
        if self._num_compared < _MAX_COMPARED_WITH_RULES:
            self._num_compared += len(lines)
            for index in set(range(len(lines))).difference(with_words):
                if may_match_rule(_truncate(lines[index]).decode("utf-8", "replace")):
                    self._lines_left.setdefault(kinds[index], _MAX_EQUAL_NOTICES)


def _indexes_of(role: int, roles: bytes) -> list[int]:
    """The indexes of the lines whose byte of roles has this one."""
    selected = roles.translate(_SELECTORS[role])
    return [*compress(range(len(roles)), selected)] if 1 in selected else []


def _last_of(hits: Sequence[int], lines: Sequence[bytes]) -> list[int]:
    """The last hits: as many lines as are read of a chunk, fewer where they are long."""
    kept, left = list[int](), _LINES_OF_CHUNK
    for index in reversed(hits[-_LINES_OF_CHUNK:]):
        left -= 1 + min(len(lines[index]), MAX_LINE_BYTES) // _CHARS_OF_LINE
        if left < 0 and kept:
            break
        kept.append(index)
    return kept[::-1]


def _lines_of(positions: Sequence[int], lines: Sequence[bytes]) -> list[int]:
    """The indexes of the lines that have the positions of their joined text, which are in order."""
    if not positions:
        return []
    indexes, end, current = list[int](), 0, 0
    for index, line in enumerate(lines):
        end += len(line) + 1
        if current < len(positions) and positions[current] < end:
            indexes.append(index)
            while current < len(positions) and positions[current] < end:
                current += 1
    return indexes


def _find_words(text: bytes, words: Iterable[bytes]) -> list[int]:
    """The positions of the words, one a line and word, in order."""
    positions: set[int] = set()
    for word in words:
        position = text.find(word)
        while position >= 0:
            positions.add(position)
            end = text.find(b"\n", position)
            position = text.find(word, end) if end >= 0 else -1
    return sorted(positions)


def _truncate(raw: bytes) -> bytes:
    return raw if len(raw) <= MAX_LINE_BYTES else raw[: MAX_LINE_BYTES * 3 // 4] + raw[-MAX_LINE_BYTES // 4 :]
