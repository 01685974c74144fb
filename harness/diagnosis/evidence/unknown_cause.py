# SPDX-License-Identifier: Apache-2.0
"""An exception that is not in the catalogue -> where it was raised, and the best next step. The cause stays unknown."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from harness.diagnosis.catalogue import CATALOGUE
from harness.diagnosis.diagnosis_types import Frame, LogEvent
from harness.diagnosis.evidence.python_errors import describe_kind
from harness.entry_file import read_entries

_TORCH, _SCRIPT, _PROGRAM = "torch", "the script's own code", "a training program"
_AREAS = read_entries(CATALOGUE / "phases" / "code_areas.txt")
_LONG_VALUE = 27
"""Characters of a quoted value that differs from job to job."""
_PACKAGE = re.compile(r"(?:site|dist)-packages/([\w-]+)")


def is_generic_evidence(event: LogEvent) -> bool:
    """Does only a generic pattern blame the script for an error that DeepSpeed's own code raised?"""
    is_generic = event.cause == "LG083" and not (event.sure or event.title or event.change)
    return is_generic and bool(event.frames) and bool(re.search(r"(?:^|/)deepspeed/", event.frames[-1].file))


def describe_area(frames: Sequence[Frame]) -> tuple[str, str]:
    """(where it was raised, the next step) by the innermost frame, and its caller where that is torch; empty texts
    without a traceback.
    """
    own: tuple[str, str] = ("", "")
    for frame in reversed(frames):
        area, step = _area_of(frame)
        if area and area != _TORCH:
            return (f"{own[0]}, called by {area}", step if area != _SCRIPT else own[1]) if own[0] else (area, step)
        own = own if own[0] else (area, step)
    return own


def _area_of(frame: Frame) -> tuple[str, str]:
    file = frame.file.replace("\\", "/")
    for area, fields in _AREAS.items():
        if re.search(rf"(?:^|/|-)(?:{fields['files']})", file):
            return area, fields["step"]
    if match := _PACKAGE.search(file):
        return (
            f"the package `{match[1]}`",
            f"install another release of `{match[1]}`, which fits the others (`pip show {match[1]}`)",
        )
    if not file.startswith(("/usr/", "<")) and "/lib/python3" not in file:
        return _SCRIPT, "read that line of the script, with the values that it had"
    return "", ""


def describe_next_step(text: str, frames: Sequence[Frame], versions: Mapping[str, str]) -> str:
    """Advice for an unknown exception: the next step, the releases seen, and what to search for."""
    area, step = describe_area(frames)
    kind = describe_kind(text, frames)
    parts = [kind or step or "read the lines below; the first of them is the oldest"]
    if kind and area == _PROGRAM:
        parts.append(step)
    if area != _SCRIPT and not text.startswith("the log ends") and (query := _search_words(text)):
        where = "the issues of that project" if area else "the web"
        parts.append(f"search {where} for `{query}`")
    if versions:
        seen = ", ".join(f"{name} {version}" for name, version in sorted(versions.items())[:5])
        parts.append(f"name the releases in a report: {seen}")
    return "; ".join(parts)


def _search_words(text: str) -> str:
    """The message without what differs from job to job: numbers, paths, addresses, quoted values."""
    text = re.sub(r"^(?:[\w.]+\.)?(\w+(?:Error|Exception)): ", r"\1: ", text.strip())
    text = re.sub(r"(?:/[\w.~-]+){2,}|0x[0-9a-fA-F]+|\d+(?:\.\d+)*", " ", text)
    text = re.sub(r"(['\"`]).*?\1", lambda quoted: quoted[0] if len(quoted[0]) < _LONG_VALUE else " ", text)
    words = " ".join(re.sub(r"[\[(][\s,]*[\])]", "", text).split())
    return words[:90].rsplit(" ", 1)[0] if len(words) > 90 else words if len(words) > 12 else ""
