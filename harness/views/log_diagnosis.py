# SPDX-License-Identifier: Apache-2.0
"""The diagnosis of a log: the cause, its rank and certainty, the fix, and the relevant lines."""

from __future__ import annotations

import json
import textwrap

from harness.diagnosis.diagnosis_types import Diagnosis
from harness.units import format_bytes
from harness.views.style import Style, escape_unprintable

_STATE_COLOURS = {"failed": "red", "completed": "green"}
"""Of a state; all others are yellow."""


def render_diagnosis(diagnosis: Diagnosis, style: Style, width: int = 120) -> str:
    """A dozen lines for a terminal."""
    head = style.paint(diagnosis.state, _STATE_COLOURS.get(diagnosis.state, "yellow"), bold=True)
    lines = [f"{head}{escape_unprintable(_format_rank(diagnosis))}: {escape_unprintable(diagnosis.title)}"]
    if diagnosis.state == "failed":
        what = f"{diagnosis.cause}, {diagnosis.confidence}" if diagnosis.cause else diagnosis.confidence
        lines.append(f"  cause      {what}")
    if diagnosis.message:
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


def diagnosis_as_dict(diagnosis: Diagnosis) -> dict[str, object]:
    """The same as values of JSON."""
    return {
        "format_version": 1,
        "state": diagnosis.state,
        "confidence": diagnosis.confidence,
        "cause": diagnosis.cause or None,
        "title": diagnosis.title,
        "message": diagnosis.message or None,
        "rank": diagnosis.rank,
        "host": diagnosis.host or None,
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
