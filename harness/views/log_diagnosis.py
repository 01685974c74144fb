"""What came of reading a log: the cause, whose it is, how sure that is, what to change, the lines that matter."""

from __future__ import annotations

import json
import textwrap

from harness.diagnosis.diagnosis_types import Diagnosis
from harness.units import format_bytes
from harness.views.style import Style, escape_unprintable

_STATE_COLOURS = {"failed": "red", "completed": "green"}
"""Of a state; all others are yellow."""


def render_diagnosis(found: Diagnosis, style: Style, width: int = 120) -> str:
    """A dozen lines for a person."""
    head = style.paint(found.state, _STATE_COLOURS.get(found.state, "yellow"), bold=True)
    lines = [f"{head}{escape_unprintable(_format_rank(found))}: {escape_unprintable(found.title)}"]
    if found.state == "failed":
        what = f"{found.cause}, {found.confidence}" if found.cause else found.confidence
        lines.append(f"  cause      {what}")
    if found.message:
        lines += _wrap_lines("  said       ", found.message, width)
    if found.where:
        lines.append(f"  at         {escape_unprintable(found.where)}")
    for note in found.notes:
        lines += _wrap_lines("  note       ", note, width)
    if found.change:
        lines += _wrap_lines("  change     ", found.change, width)
    if found.lines:
        lines += ["", "  The lines that matter"]
        digits = max(len(str(number)) for number, _ in found.lines)
        lines += [
            f"  {str(number or '').rjust(digits)} | {escape_unprintable(text, keep=chr(9))[: max(width - digits - 5, 40)]}"
            for number, text in found.lines
        ]
    if found.num_bytes:
        ranks = f", {len(found.ranks)} rank{'s' if len(found.ranks) != 1 else ''} seen" if found.ranks else ""
        lines += ["", f"  {found.num_lines} lines read, {format_bytes(found.num_bytes)}{ranks}"]
    if found.cause:
        lines.append(f"  More: harness explain {found.cause}")
    return "\n".join(lines)


def diagnosis_as_dict(found: Diagnosis) -> dict[str, object]:
    """The same as values of JSON."""
    return {
        "format_version": 1,
        "state": found.state,
        "confidence": found.confidence,
        "cause": found.cause or None,
        "title": found.title,
        "message": found.message or None,
        "rank": found.rank,
        "host": found.host or None,
        "where": found.where or None,
        "line": found.line or None,
        "change": found.change or None,
        "notes": list(found.notes),
        "lines": [{"line": number or None, "text": text} for number, text in found.lines],
        "ranks_seen": list(found.ranks),
        "num_lines": found.num_lines,
        "num_bytes": found.num_bytes,
    }


def diagnosis_as_json(found: Diagnosis) -> str:
    """The same for programs."""
    return json.dumps(diagnosis_as_dict(found), indent=2)


def _format_rank(found: Diagnosis) -> str:
    if found.state != "failed":
        return ""
    if found.rank is None:
        return f" on {found.host}" if found.host else ""
    return f" on rank {found.rank}" + (f" ({found.host})" if found.host else "")


def _wrap_lines(head: str, text: str, width: int) -> list[str]:
    return textwrap.wrap(
        escape_unprintable(text, keep="\n\t"),
        max(width, 40),
        initial_indent=head,
        subsequent_indent=" " * len(head),
        break_long_words=False,
        break_on_hyphens=False,
    )
