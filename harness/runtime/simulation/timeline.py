# SPDX-License-Identifier: Apache-2.0
"""The work of a step as slices on tracks, for a trace: neighbours of one line of code are one slice.

A slice is a product, an attention, a collective, a copy or a run of other kernels; `kernels` counts them.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from types import FrameType
from typing import Any

from harness.runtime.simulation.memory_tracker import calling_line

MAX_SLICES = 60_000
_FIRST_THRESHOLD = 10e-6
_PRODUCTS = ("mm", "bmm", "addmm", "baddbmm")
_LINEAR = "deepspeed/runtime/zero/linear.py"
"""ZeRO-3 replaces `linear`: every product would be of this file."""
_MODELS = "/transformers/"
_GAP = 1e-6
"""Seconds between two kernels that are still one slice."""


@dataclass(slots=True)
class _Slice:
    name: str
    kind: str
    phase: str
    line: str
    start: float
    end: float
    kernels: int = 1


class Timeline:
    """Slices by track, in the order in which their work was issued."""

    def __init__(self) -> None:
        self._tracks: dict[str, list[_Slice]] = {}
        self._count = 0
        self._threshold = 0.0

    def clear(self) -> None:
        """A step begins."""
        self._tracks.clear()
        self._count, self._threshold = 0, 0.0

    def add(self, track: str, kind: str, phase: str, start: float, end: float, name: str) -> None:
        """Work from `start` to `end`, of the line that called."""
        line = calling_line() or "autograd"
        if line.startswith(_LINEAR):
            line = _find_model_line() or line
        is_named = kind != "compute" or "attention" in name or name in _PRODUCTS
        name = name if is_named else "other kernels"
        slices = self._tracks.setdefault(track, [])
        last = slices[-1] if slices else None
        if (
            last is not None
            and (last.name, last.phase, last.line) == (name, phase, line)
            and 0 <= start - last.end <= _GAP
        ):
            last.end = end
            last.kernels += 1
            return
        slices.append(_Slice(name, kind, phase, line, start, end))
        self._count += 1
        if self._count > MAX_SLICES:
            self._merge_short()

    def to_json(self, phases: Sequence[tuple[str, float, float]], window: tuple[float, float]) -> dict[str, Any]:
        """Microseconds since the step began. `slices`: (track, name, kind, phase, line, start, duration, kernels), the
        texts by number in `texts`. `merged_below`: slices shorter than so many seconds were merged with neighbours.
        """
        start, end = window
        texts: dict[str, int] = {}
        rows = [
            [
                *(texts.setdefault(text, len(texts)) for text in (track, each.name, each.kind, each.phase, each.line)),
                _micro(max(each.start, start) - start),
                _micro(each.end - max(each.start, start)),
                each.kernels,
            ]
            for track, slices in self._tracks.items()
            for each in slices
            if each.start < end and each.end > start
        ]
        spans = [
            [name, round((first - start) * 1e6, 1), round((last - first) * 1e6, 1)] for name, first, last in phases
        ]
        return {"texts": list(texts), "slices": rows, "phases": spans, "merged_below": self._threshold}

    def _merge_short(self) -> None:
        """Merge short neighbours of a track and phase, until half of the room is free."""
        while self._count > MAX_SLICES // 2:
            self._threshold = max(_FIRST_THRESHOLD, self._threshold * 4)
            for track, slices in self._tracks.items():
                self._tracks[track] = _merged(slices, self._threshold)
            self._count = sum(len(slices) for slices in self._tracks.values())


def _find_model_line() -> str:
    """`file:line function` of the innermost caller in a model of `transformers`; empty if there is none."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        path, code = frame.f_code.co_filename, frame.f_code
        if _MODELS in path:
            return f"transformers/{path.rpartition(_MODELS)[2]}:{frame.f_lineno} {code.co_name}"
        frame = frame.f_back
    return ""


def _micro(seconds: float) -> float:
    return round(seconds * 1e6, 1)


def _merged(slices: list[_Slice], threshold: float) -> list[_Slice]:
    result: list[_Slice] = []
    for each in slices:
        last = result[-1] if result else None
        if last is None or last.phase != each.phase or not _is_short(last, each, threshold):
            result.append(each)
            continue
        if each.end - each.start > last.end - last.start:
            last.kind = each.kind
        last.end, last.kernels = each.end, last.kernels + each.kernels
        if (last.name, last.line) != (each.name, each.line):
            last.name = last.line = "several"
    return result


def _is_short(last: _Slice, each: _Slice, threshold: float) -> bool:
    shorter = min(each.end - each.start, last.end - last.start)
    return 0 <= each.start - last.end <= threshold and shorter <= threshold
