# SPDX-License-Identifier: Apache-2.0
"""The diagnosis of a log: the cause, its rank and certainty, the fix, and the relevant lines."""

from __future__ import annotations

import json
import textwrap

from harness.diagnosis.diagnosis_types import Diagnosis
from harness.diagnosis.verdict_priority import VERDICT_NOTE
from harness.units import format_bytes
from harness.verdicts import describe_end
from harness.views.style import Style, escape_unprintable

_STATE_COLOURS = {"failed": "red", "completed": "green"}
"""Of a state; all others are yellow."""


def render_diagnosis(diagnosis: Diagnosis, style: Style, width: int = 120) -> str:
    """A dozen lines for a terminal."""
    head = style.paint(diagnosis.state, _STATE_COLOURS.get(diagnosis.state, "yellow"), bold=True)
    verdict = diagnosis.verdict
    end = f"{_format_rank(diagnosis)}: {diagnosis.title}" if verdict is None else describe_end(verdict)
    lines = [head + escape_unprintable(end)]
    if diagnosis.state == "failed":
        lines += _wrap_lines("  cause      ", _format_cause(diagnosis), width)
    if diagnosis.message and (verdict is None or not is_same_text(diagnosis.message, verdict.reason)):
        lines += _wrap_lines("  said       ", diagnosis.message, width)
    if diagnosis.where:
        lines.append(f"  at         {escape_unprintable(diagnosis.where)}")
    for note in diagnosis.notes:
        lines += _wrap_lines("  note       ", note, width)
    if diagnosis.change:
        lines += _wrap_lines("  change     ", diagnosis.change, width)
    if diagnosis.lines:
        lines += ["", "  Relevant lines"]
        digits = max(len(str(number)) for number, _ in diagnosis.lines)
        text_width = max(width - digits - 5, 40)
        lines += [
            f"  {str(number or '').rjust(digits)} | {escape_unprintable(text, keep=chr(9))[:text_width]}"
            for number, text in diagnosis.lines
        ]
    if diagnosis.num_bytes:
        ranks = (
            f", {len(diagnosis.ranks)} rank{'s' if len(diagnosis.ranks) != 1 else ''} seen" if diagnosis.ranks else ""
        )
        lines += ["", f"  {diagnosis.num_lines} lines read, {format_bytes(diagnosis.num_bytes)}{ranks}"]
    if diagnosis.cause:
        lines.append(f"  More: harness explain {diagnosis.cause}")
    return "\n".join(lines)


def render_cause_rows(diagnosis: Diagnosis) -> list[tuple[str, str]]:
    """(name, text) of the cause, its place, notes and the change, for the end of a launch, whose first line has the
    verdict. Without the lines of the log.
    """
    rows = [("cause", _format_cause(diagnosis)), ("at", diagnosis.where)]
    rows += [("note", note) for note in diagnosis.notes if note != VERDICT_NOTE]
    rows += [("change", diagnosis.change)] if diagnosis.cause else []
    return [(name, text) for name, text in rows if text]


def _format_cause(diagnosis: Diagnosis) -> str:
    """Id, certainty and title; the title only with a verdict, which has the first line."""
    what = f"{diagnosis.cause}, {diagnosis.confidence}" if diagnosis.cause else diagnosis.confidence
    return f"{what}: {diagnosis.title}" if diagnosis.verdict is not None and diagnosis.cause else what


def is_same_text(one: str, other: str) -> bool:
    """True if one text begins with the other, apart from white space and where it was shortened."""
    first, second = (" ".join(text.removesuffix("...").split()) for text in (one, other))
    return first.startswith(second) or second.startswith(first)


def diagnosis_as_dict(diagnosis: Diagnosis) -> dict[str, object]:
    """The same as values of JSON."""
    verdict = diagnosis.verdict
    return {
        "format_version": 1,
        "state": diagnosis.state,
        "confidence": diagnosis.confidence,
        "cause": diagnosis.cause or None,
        "title": diagnosis.title,
        "message": diagnosis.message or None,
        "rank": diagnosis.rank,
        "host": diagnosis.host or None,
        "signal": (verdict.signal or None) if verdict else None,
        "step": verdict.step if verdict else None,
        "reason": (verdict.reason or None) if verdict else None,
        "where": diagnosis.where or None,
        "line": diagnosis.line or None,
        "change": diagnosis.change or None,
        "notes": list(diagnosis.notes),
        "lines": [{"line": number or None, "text": text} for number, text in diagnosis.lines],
        "ranks_seen": list(diagnosis.ranks),
        "num_lines": diagnosis.num_lines,
        "num_bytes": diagnosis.num_bytes,
    }


def diagnosis_as_json(diagnosis: Diagnosis) -> str:
    """The same for programs."""
    return json.dumps(diagnosis_as_dict(diagnosis), indent=2)


def _format_rank(diagnosis: Diagnosis) -> str:
    if diagnosis.state != "failed":
        return ""
    if diagnosis.rank is None:
        return f" on {diagnosis.host}" if diagnosis.host else ""
    return f" on rank {diagnosis.rank}" + (f" ({diagnosis.host})" if diagnosis.host else "")


def _wrap_lines(head: str, text: str, width: int) -> list[str]:
    return textwrap.wrap(
        escape_unprintable(text, keep="\n\t"),
        max(width, 40),
        initial_indent=head,
        subsequent_indent=" " * len(head),
        break_long_words=False,
        break_on_hyphens=False,
    )
