# SPDX-License-Identifier: Apache-2.0
"""Notes on the kind of job that a log shows: no launcher, images, experts, generation, masked conversations."""

from __future__ import annotations

import re
from collections.abc import Iterator

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
    cause, frames = (first.cause, first.frames) if first is not None else ("none", ())
    steps = (phase.step if phase is not None else None) or 0
    for kind in _KINDS:
        if cause not in kind["causes"].split() or ("alone" in kind and not is_alone) or ("steps" in kind and steps < 2):
            continue
        words, others = (re.compile(kind.get(name, "").encode()) for name in ("words", "no words"))
        if not words.search(text) or ("no words" in kind and others.search(text)):
            continue
        if "partitioned" not in kind or shows_zero3(text, frames):
            yield kind["note"].replace("{steps}", str(steps))
