# SPDX-License-Identifier: Apache-2.0
"""The diagnosis of a log: the cause, its rank and certainty, the fix, and the relevant lines."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator

from harness.check.log_opinion import LogOpinion
from harness.diagnosis.decision import Decision, decide_action
from harness.diagnosis.diagnosis_types import Diagnosis
from harness.diagnosis.verdict_priority import VERDICT_NOTE
from harness.units import format_bytes
from harness.verdicts import describe_end
from harness.views.style import Style, escape_unprintable

_STATE_COLOURS = {"failed": "red", "completed": "green"}
"""Of a state; all others are yellow."""


def render_diagnosis(diagnosis: Diagnosis, style: Style, width: int = 120, *, opinion: LogOpinion | None = None) -> str:
    """A dozen lines for a terminal. `opinion`: what the gates find in the configuration that the log shows."""
    head = style.paint(diagnosis.state, _STATE_COLOURS.get(diagnosis.state, "yellow"), bold=True)
    verdict = diagnosis.verdict
    end = f"{_format_rank(diagnosis)}: {diagnosis.title}" if verdict is None else describe_end(verdict)
    first, *rest = wrap_lines("", f"{diagnosis.state}{end}", width - 2)
    lines = [head + first.removeprefix(diagnosis.state), *(f"  {line}" for line in rest)]
    if diagnosis.state == "failed":
        lines += wrap_lines("  cause      ", _format_cause(diagnosis), width)
    for name, text in _list_rows(diagnosis):
        lines += wrap_lines(f"  {name:<10} ", text, width)
    if opinion is not None:
        lines += _render_opinion(opinion, diagnosis, style, width)
    if diagnosis.lines:
        lines += ["", "  Relevant lines"]
        places = _list_places(diagnosis)
        place_width = max(map(len, places))
        text_width = max(width - place_width - 5, 40)
        lines += [
            f"  {place.rjust(place_width)} | {escape_unprintable(text, keep=chr(9))[:text_width].rstrip()}"
            for place, (_, text) in zip(places, diagnosis.lines, strict=True)
        ]
    if diagnosis.num_bytes:
        ranks = (
            f", {len(diagnosis.ranks)} rank{'s' if len(diagnosis.ranks) != 1 else ''} seen" if diagnosis.ranks else ""
        )
        versions = "".join(f", {name} {version}" for name, version in sorted(diagnosis.facts.versions.items())[:3])
        num_lines = f"{diagnosis.num_lines} line{'s' if diagnosis.num_lines != 1 else ''}"
        lines += ["", f"  {num_lines} read, {format_bytes(diagnosis.num_bytes)}{ranks}{versions}"]
    if diagnosis.cause:
        lines.append(f"  More: harness explain {diagnosis.cause}")
    return "\n".join(lines)


def _render_opinion(opinion: LogOpinion, diagnosis: Diagnosis, style: Style, width: int) -> list[str]:
    """The findings about the configuration, one line each."""
    if opinion.agrees:
        head = f"`harness validate-config` finds the same mistake, {diagnosis.cause}, in {opinion.source}"
    else:
        head = f"`harness validate-config` finds in {opinion.source}"
    lines = ["", *wrap_lines("  ", f"{head}, under DeepSpeed {opinion.deepspeed}:", width)]
    for finding in opinion.findings:
        colour = "red" if finding.is_error else "yellow"
        text = escape_unprintable(f"{finding.gate}: {finding.message}")
        room = max(width - 5 - len(finding.severity), 40)
        text = text if len(text) <= room else f"{text[: room - 3]}..."
        lines.append(f"    {style.paint(finding.severity, colour)} {text}")
    return [*lines, f"    and {opinion.num_more} more"] if opinion.num_more else lines


def _list_rows(diagnosis: Diagnosis) -> Iterator[tuple[str, str]]:
    """(name, text) of the rows below the cause."""
    verdict, phase, allocation = diagnosis.verdict, diagnosis.phase, diagnosis.allocation
    if diagnosis.message and (verdict is None or not is_same_text(diagnosis.message, verdict.reason)):
        yield "said", diagnosis.message
    if diagnosis.file:
        yield "log", f"{diagnosis.file}:{diagnosis.line}"
    if diagnosis.where:
        yield "at", diagnosis.where
    if phase is not None:
        yield "phase", phase.text
    if allocation is not None:
        yield "allocating", allocation.text
    for note in diagnosis.notes:
        yield "note", note
    if diagnosis.change:
        yield "change", diagnosis.change
    if (decision := decide_action(diagnosis)) is not None:
        yield "decision", format_decision(decision)
    if diagnosis.releases:
        yield "releases", diagnosis.releases


def format_decision(decision: Decision) -> str:
    """The action, its reason, and the keys to change: `stop: the same input fails again`."""
    changes = ", ".join(f"`{key}: {json.dumps(value)}`" for key, value in decision.changes.items())
    return f"{decision.action}: {decision.reason}" + (f"; {changes}" if changes else "")


def _list_places(diagnosis: Diagnosis) -> list[str]:
    """`12` of each line, or `FILE:12` where several logs were read; empty for a frame."""
    files = diagnosis.line_files or ("",) * len(diagnosis.lines)
    return [
        (f"{escape_unprintable(file)}:{number}" if file else str(number)) if number else ""
        for file, (number, _) in zip(files, diagnosis.lines, strict=True)
    ]


def render_cause_rows(diagnosis: Diagnosis) -> list[tuple[str, str]]:
    """(name, text) of the cause, its place, notes and the change, for the end of a launch, whose first line has the
    verdict. Without the lines of the log.
    """
    phase, allocation = diagnosis.phase, diagnosis.allocation
    rows = [("cause", _format_cause(diagnosis)), ("at", diagnosis.where)]
    rows += [("phase", phase.text)] if phase is not None and diagnosis.cause else []
    rows += [("allocating", allocation.text)] if allocation is not None else []
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


def diagnosis_as_dict(diagnosis: Diagnosis, opinion: LogOpinion | None = None) -> dict[str, object]:
    """The same as values of JSON."""
    verdict, phase, allocation = diagnosis.verdict, diagnosis.phase, diagnosis.allocation
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
        "file": diagnosis.file or None,
        "line": diagnosis.line or None,
        "phase": {"name": phase.name, "text": phase.text, "step": phase.step, "source": phase.source}
        if phase
        else None,
        "allocation": {"name": allocation.name, "text": allocation.text} if allocation else None,
        "change": diagnosis.change or None,
        "decision": decision_as_dict(decide_action(diagnosis), diagnosis),
        "releases": diagnosis.releases or None,
        "second_opinion": _opinion_as_dict(opinion) if opinion is not None else None,
        "versions": dict(sorted(diagnosis.facts.versions.items())),
        "notes": list(diagnosis.notes),
        "lines": [
            {"file": file or None, "line": number or None, "text": text}
            for file, (number, text) in zip(
                diagnosis.line_files or ("",) * len(diagnosis.lines), diagnosis.lines, strict=True
            )
        ],
        "ranks_seen": list(diagnosis.ranks),
        "num_lines": diagnosis.num_lines,
        "num_bytes": diagnosis.num_bytes,
    }


def decision_as_dict(decision: Decision | None, diagnosis: Diagnosis) -> dict[str, object] | None:
    """The decision with the line that it rests on; None where the cause is not known."""
    if decision is None:
        return None
    return {
        "action": decision.action,
        "reason": decision.reason,
        "hosts": list(decision.hosts),
        "changes": dict(decision.changes),
        "evidence": {"file": diagnosis.file or None, "line": diagnosis.line or None, "text": diagnosis.message},
    }


def _opinion_as_dict(opinion: LogOpinion) -> dict[str, object]:
    return {
        "source": opinion.source,
        "deepspeed": opinion.deepspeed,
        "agrees": opinion.agrees,
        "findings": [
            {"gate": f.gate, "severity": f.severity, "key": f.key, "message": f.message} for f in opinion.findings
        ],
        "num_more": opinion.num_more,
    }


def diagnosis_as_json(diagnosis: Diagnosis, opinion: LogOpinion | None = None) -> str:
    """The same for programs."""
    return json.dumps(diagnosis_as_dict(diagnosis, opinion), indent=2)


def _format_rank(diagnosis: Diagnosis) -> str:
    if diagnosis.state != "failed":
        return ""
    if diagnosis.rank is None:
        return f" on {diagnosis.host}" if diagnosis.host else ""
    return f" on rank {diagnosis.rank}" + (f" ({diagnosis.host})" if diagnosis.host else "")


def wrap_lines(head: str, text: str, width: int) -> list[str]:
    """A row of sentences below its head; a path is not broken."""
    return textwrap.wrap(
        escape_unprintable(text, keep="\n\t"),
        max(width, 40),
        initial_indent=head,
        subsequent_indent=" " * len(head),
        break_long_words=False,
        break_on_hyphens=False,
    )
