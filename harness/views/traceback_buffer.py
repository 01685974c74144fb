# SPDX-License-Identifier: Apache-2.0
"""Tracebacks of ranks, kept from the screen until it is known whose it was that ended the run.

A rank that lost another one says so at length, before anybody knows that the other one was killed. Prints nothing.
"""

from __future__ import annotations

from collections import deque

from harness.launching.supervise.log_filter import rank_of, strip_rank_prefix
from harness.verdicts import Verdict

_FIRST_LINE = "Traceback (most recent call last):"
_MAX_LINES = 200
"""Of a rank's first lines, and of its last: a traceback that it outlived may come long before the one that ended it."""


class TracebackBuffer:
    """The lines of each rank from the beginning of its traceback on."""

    def __init__(self) -> None:
        self._by_rank: dict[int, tuple[list[str], deque[str]]] = {}

    def feed(self, line: str) -> bool:
        """Keep a line that is part of one; False for any other."""
        rank = rank_of(line)
        if rank not in self._by_rank and not strip_rank_prefix(line).startswith(_FIRST_LINE):
            return False
        first, last = self._by_rank.setdefault(rank, ([], deque(maxlen=_MAX_LINES)))
        (first if len(first) < _MAX_LINES else last).append(line)
        return True

    def pop_lines(self, rank: int) -> list[str]:
        """The lines of a rank that went on after all."""
        first, last = self._by_rank.pop(rank, ([], ()))
        return [*first, *last]

    def pop_for_verdict(self, verdict: Verdict) -> tuple[list[str], list[int]]:
        """(the lines that tell why the ranks ended so, which other ranks had said something); none are kept after that.

        Where no rank is named, it is the first one's, which is shown while a run goes on.
        """
        whose = 0 if verdict.rank is None else verdict.rank if verdict.crashed or verdict.refused else None
        lines = [] if whose is None else self.pop_lines(whose)
        others = sorted(self._by_rank)
        self._by_rank.clear()
        return lines, others
