"""Findings as text for a person: the message, the line it is on, what else belongs to it, how to mend it."""

from __future__ import annotations

from collections.abc import Sequence

from harness.findings import Finding, Label, Place, Report
from harness.spec.source import Source
from harness.views.style import Style

_COLOUR = {"error": "red", "warning": "yellow", "info": "cyan"}


def findings(items: Sequence[Finding], source: Source | None, style: Style) -> str:
    """Each finding as a block with its excerpt, blank lines between; empty for none."""
    return "\n".join(_block(finding, source, style) for finding in items)


def summary(reports: Sequence[Report], style: Style, *, against: str = "") -> str:
    """One or two lines: how much was found, how much was looked at, what was not and why."""
    errors = sum(len(r.errors) for r in reports)
    warnings = sum(len(r.warnings) for r in reports)
    ignored = sum(len(r.ignored) for r in reports)
    checked = max((r.checked for r in reports), default=0)
    parts = [f"{_count(errors, 'error')}" if errors else "", _count(warnings, "warning") if warnings else ""]
    found = ", ".join(p for p in parts if p)
    head = (
        style.paint(f"Found {found}", "red" if errors else "yellow", bold=True)
        if found
        else style.paint("OK", "green", bold=True)
    )
    files = f" in {len(reports)} files" if len(reports) > 1 else ""
    tail = f", {ignored} ignored by the spec" if ignored else ""
    looked = f"{checked} gates checked{against}" if checked else "Combinations are checked once every key can be read"
    lines = [f"{head}{files}. {looked}{tail}{_skipped(reports)}"]
    return "\n".join(lines)


def _skipped(reports: Sequence[Report]) -> str:
    """The gates that could not look and what they lack; those about launching are only counted."""
    by_need: dict[str, list[str]] = {}
    for item in dict.fromkeys(item for report in reports for item in report.skipped):
        by_need.setdefault(item.needs, []).append(item.gate)
    later = len(by_need.pop("a launch", ()))
    hints = {"world size": "no --hostfile or --world-size"}
    parts = [f"{', '.join(gates)} ({hints.get(need, need)})" for need, gates in by_need.items()]
    total = sum(map(len, by_need.values()))
    skipped = f", {total} skipped: {'; '.join(parts)}" if total else ""
    return skipped + (f", {later} more on launch" if later else "")


def _count(number: int, word: str) -> str:
    return f"{number} {word}{'' if number == 1 else 's'}"


def _block(finding: Finding, source: Source | None, style: Style) -> str:
    head = style.paint(f"{finding.severity}[{finding.gate}]", _COLOUR[finding.severity], bold=True)
    lines = [f"{head}: {style.paint(finding.message, '', bold=True)}"]
    if finding.place is not None:
        lines += _excerpt(finding, finding.place, source, style)
    for note in finding.notes:
        lines.append(f"   = note: {note}")
    if finding.fix is not None:
        effect = f"  ({finding.fix.effect})" if finding.fix.effect else ""
        lines.append(f"{style.paint('help', 'green', bold=True)}: {finding.fix.title}{effect}")
    return "\n".join(lines) + "\n"


def _excerpt(finding: Finding, place: Place, source: Source | None, style: Style) -> list[str]:
    shown = [Label(place, finding.label), *finding.related]
    shown = [label for label in shown if label.place.file == place.file]
    elsewhere = [label for label in finding.related if label.place.file != place.file]
    where = (
        f"the command line, {source.lines('--set')[place.line - 1]}" if place.file == "--set" and source else str(place)
    )
    lines = [f"  {style.paint('-->', 'blue')} {where}"]
    quoted = _quote(shown, place, source, style) if source and place.length else []
    lines += quoted or ([f"   {style.paint('|', 'blue')} {finding.label}"] if finding.label else [])
    lines += [f"   = {_where(label, source)}: {label.text}" for label in elsewhere]
    return lines


def _where(label: Label, source: Source | None) -> str:
    if label.place.file == "--set" and source:
        return f"--set {source.lines('--set')[label.place.line - 1]}"
    return str(label.place)


def _quote(labels: Sequence[Label], main: Place, source: Source, style: Style) -> list[str]:
    text = source.lines(main.file)
    labels = sorted(
        (label for label in labels if 0 < label.place.line <= len(text)), key=lambda label: label.place.line
    )
    if not labels or not any(text[label.place.line - 1].strip() for label in labels):
        return []
    width = max(2, len(str(labels[-1].place.line)))
    bar = style.paint("|", "blue")
    lines, last = [f"{' ' * width} {bar}"], 0
    for label in labels:
        number, line = label.place.line, text[label.place.line - 1]
        if last and number > last + 1:
            lines.append("...")
        if number != last:
            lines.append(f"{style.paint(str(number).rjust(width), 'blue')} {bar} {_clip(line)}")
        mark = ("^" if label.place is main else "-") * max(1, min(label.place.length or 1, 60))
        colour = "red" if label.place is main else "blue"
        if label.place.column <= _WIDTH:
            said = style.paint(f"{mark} {label.text}".rstrip(), colour)
            lines.append(f"{' ' * width} {bar} {_pad(line, label.place.column)}{said}")
        last = number
    return [*lines, f"{' ' * width} {bar}"]


_WIDTH = 160


def _clip(line: str) -> str:
    return line.rstrip() if len(line) <= _WIDTH else line[: _WIDTH - 3] + "..."


def _pad(line: str, column: int) -> str:
    """Blanks up to the column, tabs kept, so that the mark stands below what it means."""
    return "".join("\t" if char == "\t" else " " for char in line[: column - 1]).ljust(column - 1)
