# SPDX-License-Identifier: Apache-2.0
"""Notes, or another title and change than the cause's, by the kind of job that a log shows besides its failure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace

from harness.diagnosis.catalogue import CATALOGUE
from harness.diagnosis.diagnosis_types import FailurePhase, LogEvent
from harness.diagnosis.evidence.python_errors import shows_zero3
from harness.entry_file import read_entries

_KINDS = tuple(read_entries(CATALOGUE / "phases" / "job_kinds.txt").values())


def describe_job(
    first: LogEvent | None, text: bytes, phase: FailurePhase | None = None, *, is_alone: bool = False
) -> Iterator[str]:
    """Notes on the first failure of a log with this text, or on a log without one. `is_alone`: the log shows one rank
    at most.
    """
    for kind, values in _find_kinds(first, text, phase, is_alone=is_alone):
        if "note" in kind:
            yield kind["note"].format(**values)


def describe_by_log(first: LogEvent, text: bytes, *, is_alone: bool = False) -> LogEvent:
    """The event, with the title and the change of a kind of job that the log shows; itself where none has its own.
    `is_alone`: the log shows one rank at most.
    """
    for kind, values in _find_kinds(first, text, None, is_alone=is_alone):
        if "title" in kind:
            title, change = (kind[name].format(**values) for name in ("title", "change"))
            cause = kind.get("cause", first.cause)
            return replace(first, cause=cause, title=title, change=change, sure=first.sure and "sure" in kind)
    return first


def _find_kinds(
    first: LogEvent | None, text: bytes, phase: FailurePhase | None, *, is_alone: bool
) -> Iterator[tuple[Mapping[str, str], Mapping[str, str]]]:
    """(fields, values) of the kinds of job that the log shows and that belong to its failure."""
    cause, frames = (first.cause, first.frames) if first is not None else ("none", ())
    mark = phase or (first.phase if first is not None else None)
    steps = (mark.step if mark is not None else None) or 0
    for kind in _KINDS:
        if (
            (cause or "unknown") not in kind["causes"].split()
            or ("alone" in kind and not is_alone)
            or ("steps" in kind and steps < 2)
        ):
            continue
        words, others = (re.compile(kind.get(name, "").encode()) for name in ("words", "no words"))
        match = words.search(text)
        if match is None or ("no words" in kind and others.search(text)):
            continue
        if "partitioned" not in kind or shows_zero3(text, frames):
            values = {name: (value or b"").decode(errors="replace") for name, value in match.groupdict().items()}
            yield kind, {**values, "steps": str(steps)}
