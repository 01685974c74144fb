# SPDX-License-Identifier: Apache-2.0
"""Lines that programs print when a phase of a job begins -> the last phase before a line, in bounded memory.

The reader finds these lines, by their kind, and those that show progress.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Sequence

from harness.diagnosis.catalogue import CATALOGUE
from harness.diagnosis.diagnosis_types import NO_PHASE, PhaseMark
from harness.diagnosis.reader.line_prefix import parse_line
from harness.entry_file import read_entries

_MAX_BEGINNINGS, _MAX_PROGRESS = 20, 2
"""Lines of each sort that are read where many follow each other."""
_MAX_CHARS = 600
_MAX_RANKS = 4096
PHASE_WORDS = tuple(
    (
        b"oading |aving |heckpoint|reating |*** Running |ime to load|extension|DeepSpeed|endezvous|nitializ|"
        b"rain_runtime|rainable params: |raining complete|raining finished|raining done|okeniz|Generating |Evaluat|"
        b"Resum|Map|nstantiating |uilding |onsolidat|Exporting|Attempting to resume|setting ds_accelerator|"
        b"Setting ds_accelerator| passed|batch size|anity |Validation |nd time of"
    ).split(b"|")
)
"""Every line that begins a phase has one of these."""
_END = re.compile(
    r"['\"]?train_runtime['\"]?\s*[=:]|[Tt]raining (?:is )?(?:completed?|finished|done)\b(?! (?:step|epoch|batch|\d))|"
    r"End time of running main|^=+ \d+ passed(?:, \d+ (?:skipped|warnings?|deselected|xfailed|xpassed))* in [\d.]+ ?s"
)
"""A training that ended well, or tests that did."""
_RETRY = re.compile(
    r"(?:Decreasing|[Rr]educing|[Hh]alving) (?:the )?batch size|"
    r"(?:[Tt]rying|[Rr]etrying with|training with) (?:a )?batch size"
)
"""accelerate's `find_executable_batch_size` and its like have caught an out-of-memory error."""
_PATTERNS = tuple(
    (name, re.compile(fields["lines"])) for name, fields in read_entries(CATALOGUE / "phases" / "lines.txt").items()
)
_STEP = re.compile(
    r"global_step['\"]?[=: ]+(\d+)|\b[Ss]teps?['\"]?\s?[=: /]\s?(\d+)|\biter(?:ation(?!s:\s+\d+ \|))?[s=: ]+(\d+)|"
    r"global_step(\d+)|\| *(\d+)/\d+ \[|checkpoint-(\d+)|^\(?(\d+)/\d+\)?\s"
)
_LOSS = re.compile(r"oss['\"]?(?:\s?[=:]\s?\d|\s+\d+\.\d)|SamplesPerSec|tok(?:en)?s?/s|grad[_ ]norm['\"]?\s?[=:]?\s?\d")
_BAR = re.compile(r"(?:\d+%\|.*\||^) *(?P<done>\d{1,9})/\d+ (?=\[|.*\|)")
_POSITION = re.compile(r"(?:\d%\|.*?\||\b[Ss]teps?:?|\biter(?:ation)?s?:?) *(?P<done>\d{1,9}) ?/ ?(?P<total>\d{1,9})\b")
_BAR_OF_ANOTHER = re.compile(
    r"^(?:Loading|Map|Filter|Fetching|Download|Generating|Evaluat|Sanity|Validation|Tokeniz|Packing|Saving)|B/s\]"
)

_BEFORE_STEPS = ("engine", "op", "training", "saving", "resuming")
"""Phases after which a progress bar without a name is that of training."""


class PhaseMarks:
    """The marks of one log. `mark_of(rank)` is the last one before the line that the reader is at."""

    def __init__(self) -> None:
        self.last = NO_PHASE
        self.num_ends = self.num_retries = 0
        self._by_rank: dict[int, PhaseMark] = {}
        self._tag: int | None = None
        self._lines: Sequence[bytes] = ()
        self._beginnings: Sequence[int] = ()
        self._progress: Sequence[int] = ()
        self._position = self._order = 0

    def start_block(self, lines: Sequence[bytes], beginnings: Sequence[int], progress: Sequence[int]) -> None:
        """The next lines, and the indexes of those that begin a phase and of those that show progress."""
        self.finish_block()
        self._lines, self._beginnings, self._progress, self._position = lines, beginnings, progress, 0

    def advance(self, index: int) -> None:
        """Pass the lines before this one. Only the last of each sort are read: no other is the last mark."""
        first, self._position = self._position, index
        rows = _slice(self._beginnings, first, index)[-_MAX_BEGINNINGS:]
        rows = sorted({*rows, *_slice(self._progress, first, index)[-_MAX_PROGRESS:]})
        for row in rows:
            self._pass_line(self._lines[row][:_MAX_CHARS])

    def finish_block(self) -> None:
        """Pass the rest of the lines."""
        self.advance(len(self._lines))
        self._lines = self._beginnings = self._progress = ()

    def mark_of(self, rank: int | None) -> PhaseMark:
        """The last mark, of this rank where lines say of which rank they are."""
        own = self._by_rank.get(rank) if rank is not None else None
        if own is None or own.order >= self.last.order or self._tag is None:
            return own if own is not None and own.order > self.last.order else self.last
        return own

    def _pass_line(self, raw: bytes) -> None:
        parsed = parse_line(raw)
        self.num_ends += bool(_END.search(parsed.text))
        self.num_retries += bool(_RETRY.search(parsed.text))
        name = name_phase(parsed.text)
        match = _STEP.search(parsed.text)
        step = int(next(group for group in match.groups() if group)[:12]) if match else None
        is_training = bool(_LOSS.search(parsed.text))
        bar = _BAR.search(parsed.text)
        if not name:
            if bar and _BAR_OF_ANOTHER.search(parsed.text):
                return
            is_own_bar = bar is not None and self.last.name != "evaluation"
            if not is_training and not is_own_bar:
                return
            name = "training" if is_training or self.last.name in _BEFORE_STEPS else self.last.name
        self._order += 1
        has_finished = is_training or (bar is not None and int(bar["done"]) > 0 and name == "training")
        has_trained = self.last.has_trained or has_finished
        keeps_step = name in ("training", "saving", "evaluation", "ending")
        if name not in ("training", "saving") and (name or bar is None):
            step = None
        step = step if step is not None else self.last.step if keeps_step else None
        total, is_at_end = self.last.total, self.last.is_at_end
        if position := _POSITION.search(parsed.text):
            total = total or int(position["total"])
            is_at_end = has_trained and int(position["done"]) == int(position["total"]) == total
        mark = PhaseMark(name, step, self._order, has_trained, self.last.has_bar or bar is not None, total, is_at_end)
        self._tag = parsed.rank if parsed.has_rank_tag else None
        if self._tag is not None and len(self._by_rank) < _MAX_RANKS:
            self._by_rank[self._tag] = mark
        self.last = mark


def name_phase(text: str) -> str:
    """The phase that a line begins; empty for any other line."""
    return next((name for name, pattern in _PATTERNS if pattern.search(text)), "")


def begins_phase(raw: bytes) -> bool:
    """Does the line begin a phase, or say that one ended well or is tried again?"""
    text = parse_line(raw[:_MAX_CHARS]).text
    return bool(name_phase(text) or _END.search(text) or _RETRY.search(text))


def _slice(indexes: Sequence[int], first: int, end: int) -> Sequence[int]:
    return indexes[bisect_left(indexes, first) : bisect_left(indexes, end)]
