# SPDX-License-Identifier: Apache-2.0
"""The notes of `harness adopt` on the run spec that it prints. Knows no format."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from harness.check.config_comparison import ComparedKey, ConfigComparison
from harness.convert.conversion import ConvertedSpec
from harness.convert.draft import HEADINGS, NoteKind
from harness.convert.model_objective import UNKNOWN_MODEL
from harness.convert.yaml_writer import format_inline
from harness.findings import Finding
from harness.units import pluralize
from harness.views.style import escape_unprintable


def render_conversion_notes(adopted: ConvertedSpec, file: str) -> str:
    """Three lists, the program's defaults, and a line of numbers."""
    lines = list(_note_lines(adopted))
    return "\n".join(escape_unprintable(line) for line in (*lines, f"Converted {file}: {_summary(adopted)}."))


def _note_lines(adopted: ConvertedSpec) -> Iterator[str]:
    for kind, heading in HEADINGS.items():
        notes = adopted.notes_of(kind)
        if notes:
            yield f"{heading}:"
        plain = [note for note in notes if note.is_plain]
        if plain:
            yield "  " + ", ".join(f"{note.message} (line {note.place.line})" for note in plain)
        for note in notes:
            if not note.is_plain:
                yield f"  {note}"
    if adopted.draft.remarks.get("model.name_or_path") == UNKNOWN_MODEL:
        yield f"`{adopted.draft.get('model.name_or_path')}` is {UNKNOWN_MODEL}; the ranks ask it before they train"
    if adopted.placeholders:
        yield f"Not in the file, a placeholder in the spec: {', '.join(f'`{key}`' for key in adopted.placeholders)}"
    if adopted.defaults:
        yield f"Defaults that the file leaves to {adopted.program}: {', '.join(f'`{key}`' for key in adopted.defaults)}"


def _summary(adopted: ConvertedSpec) -> str:
    kinds: tuple[NoteKind, ...] = ("manual", "lossy", "harmless")
    counts = {kind: len(adopted.notes_of(kind)) for kind in kinds}
    parts = []
    if counts["manual"]:
        parts.append(f"{counts['manual']} to be set by hand")
    if counts["lossy"]:
        parts.append(f"{counts['lossy']} trained differently")
    if counts["harmless"]:
        parts.append(f"{counts['harmless']} without effect")
    return ", ".join(parts) if parts else "every key is mapped"


def render_errors_of_spec(errors: Sequence[Finding], output: str | None) -> str:
    """The errors that the run spec has as the file had them, a line each, and the command that explains them."""
    lines = [f"  {error.gate}  {error.message}" for error in errors]
    head = f"The run spec has {pluralize(len(errors), 'error')}, which `harness launch` would refuse:"
    end = f"`harness validate-config {output or 'spec.yaml'}` has the places and the fixes."
    return "\n".join(map(escape_unprintable, (head, *lines, end)))


def render_comparison(comparison: ConfigComparison, file: str) -> str:
    """A line for each key that is not the same, and their numbers."""
    if not comparison.name:
        return escape_unprintable(
            f"{file} names no DeepSpeed JSON that exists on this machine: there is nothing to compare."
        )
    lines = [_comparison_line(item) for item in comparison.keys if item.relation != "same"]
    same = sum(item.relation == "same" for item in comparison.keys)
    ranks = f"{comparison.ranks} {'rank' if comparison.ranks == 1 else 'ranks'}"
    reasonless = len(comparison.unexplained)
    end = f"{reasonless} without a reason" if reasonless else "each with a reason"
    summary = f"{comparison.name} on {ranks}: {same} keys are the same, {len(lines)} are not, {end}."
    return "\n".join(escape_unprintable(line) for line in (*lines, summary))


def _comparison_line(item: ComparedKey) -> str:
    there, here = (format_inline(value) for value in (item.there, item.here))
    values = {
        "differs": f"{there} there, {here} here",
        "only there": f"{there} there only",
        "only here": f"{here} here only",
    }
    return f"{item.key}: {values[item.relation]}: {item.why or 'NO REASON'}"
