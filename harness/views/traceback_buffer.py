# SPDX-License-Identifier: Apache-2.0
"""Tracebacks of ranks, kept from the screen until the rank that failed first is known, and shortened for it.

A rank that lost a peer prints a long traceback before the supervisor knows that the peer was killed. Prints nothing.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Sequence

from harness.launching.supervise.log_filter import rank_of, strip_rank_prefix
from harness.verdicts import Verdict

_FIRST_LINE = "Traceback (most recent call last):"
_MAX_LINES = 200
"""Kept of a rank's first lines and of its last: a caught traceback may come long before the fatal one."""
_FRAME = re.compile(r'^\s+File "([^"]+)", line \d+')
_LIBRARY = re.compile(r"/(?:site|dist)-packages/|/lib/python3|/harness/(?:runtime|workers|patches)/|<frozen |<string>")
_MAX_SHOWN = 20


def shorten_traceback(lines: Sequence[str]) -> list[str]:
    """The lines without frames of libraries and of the harness, but for the last frame of each traceback, which raised;
    at most the last 20.
    """
    kept: list[str] = []
    frame: list[str] = []
    for line in [*lines, ""]:
        text = strip_rank_prefix(line)
        if _FRAME.match(text):
            kept += frame if frame and not _is_of_library(frame) else []
            frame = [line]
        elif frame and text.startswith("    "):
            frame.append(line)
        else:
            kept += frame  # the last of its traceback
            frame = []
            kept.append(line)
    return kept[:-1][-_MAX_SHOWN:]


def _is_of_library(frame: Sequence[str]) -> bool:
    match = _FRAME.match(strip_rank_prefix(frame[0]))
    return bool(match and _LIBRARY.search(match[1]))


class TracebackBuffer:
    """The lines of each rank from the beginning of its traceback on."""

    def __init__(self) -> None:
        self._by_rank: dict[int, tuple[list[str], deque[str]]] = {}

    def feed(self, line: str) -> bool:
        """Keep a line of a traceback; False for any other line."""
        rank = rank_of(line)
        if rank not in self._by_rank and not strip_rank_prefix(line).startswith(_FIRST_LINE):
            return False
        first, last = self._by_rank.setdefault(rank, ([], deque(maxlen=_MAX_LINES)))
        (first if len(first) < _MAX_LINES else last).append(line)
        return True

    def pop_lines(self, rank: int) -> list[str]:
        """The kept lines of a rank that continued to train."""
        first, last = self._by_rank.pop(rank, ([], ()))
        return [*first, *last]

    def pop_for_verdict(self, verdict: Verdict) -> tuple[list[str], list[int]]:
        """(the traceback that explains the end, the other ranks with tracebacks); none are kept after that. Where no
        rank is named, it is that of rank 0, which is shown during a run.
        """
        whose = 0 if verdict.rank is None else verdict.rank if verdict.crashed or verdict.refused else None
        lines = [] if whose is None else self.pop_lines(whose)
        others = sorted(self._by_rank)
        self._by_rank.clear()
        return lines, others
