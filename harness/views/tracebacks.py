"""Tracebacks of ranks, kept from the screen until it is known whose it was that ended the run.

A rank that lost another one says so at length, before anybody knows that the other one was killed. Prints nothing.
"""

from __future__ import annotations

from collections import deque

from harness.launching.noise import rank_of, without_mark
from harness.verdicts import Verdict

_BEGINS = "Traceback (most recent call last):"
_MOST_LINES = 200
"""Of a rank's first lines, and of its last: a traceback that it outlived may come long before the one that ended it."""


class Tracebacks:
    """What each rank has said from the beginning of its traceback on."""

    def __init__(self) -> None:
        self._by_rank: dict[int, tuple[list[str], deque[str]]] = {}

    def take(self, line: str) -> bool:
        """Keep a line that is part of one; False for any other."""
        rank = rank_of(line)
        if rank not in self._by_rank and not without_mark(line).startswith(_BEGINS):
            return False
        first, last = self._by_rank.setdefault(rank, ([], deque(maxlen=_MOST_LINES)))
        (first if len(first) < _MOST_LINES else last).append(line)
        return True

    def outlived(self, rank: int) -> list[str]:
        """The lines of a rank that went on after all."""
        first, last = self._by_rank.pop(rank, ([], ()))
        return [*first, *last]

    def explaining(self, verdict: Verdict) -> tuple[list[str], list[int]]:
        """(the lines that tell why the ranks ended so, which other ranks had said something); none are kept after that.

        Where no rank is named, it is the first one's, which is shown while a run goes on.
        """
        whose = 0 if verdict.rank is None else verdict.rank if verdict.crashed or verdict.refused else None
        lines = [] if whose is None else self.outlived(whose)
        others = sorted(self._by_rank)
        self._by_rank.clear()
        return lines, others
