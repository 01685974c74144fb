"""Findings as text for a person: the message, the line it is on, what else belongs to it, how to mend it.

Here findings become text, and here what others wrote (keys, values, file names, lines) loses its control characters.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from harness.findings import Finding, Label, Place, Report
from harness.spec.source import Source
from harness.views.style import Style, printable

_COLOUR = {"error": "red", "warning": "yellow", "info": "cyan"}


MOST_OF_ONE = 50
"""Findings of one kind that are shown of one file; a file of another program can have thousands."""


def findings(items: Sequence[Finding], source: Source | None, style: Style) -> str:
    """Each finding as a block with its excerpt, blank lines between; empty for none. Of one kind the first are shown,
    and the rest are counted.
    """
    shown, left = first_of_each(items)
    more = [f"... and {count:,} more of {gate}; `--format json` has all\n" for gate, count in left]
    return "\n".join([*(_block(finding, source, style) for finding in shown), *more])


def first_of_each(items: Sequence[Finding]) -> tuple[list[Finding], list[tuple[str, int]]]:
    """The first findings of each kind, and how many more there are of which."""
    seen: Counter[str] = Counter()
    shown = []
    for finding in items:
        seen[finding.gate] += 1
        if seen[finding.gate] <= MOST_OF_ONE:
            shown.append(finding)
    return shown, [(gate, count - MOST_OF_ONE) for gate, count in seen.items() if count > MOST_OF_ONE]


def summary(reports: Sequence[Report], style: Style, *, against: str = "", general: Sequence[Finding] = ()) -> str:
    """One or two lines: how much was found, how much was looked at, what was not and why."""
    found = _found([*general, *(f for r in reports for f in r.findings)])
    ignored = sum(len(r.ignored) for r in reports)
    left_out = sum(len(r.left_out) for r in reports)
    fixed = sum(len(r.fixed) for r in reports)
    checked = max((r.checked for r in reports), default=0)
    bad = any(r.errors for r in reports) or any(f.is_error for f in general)
    head = (
        style.paint(f"Found {found}", "red" if bad else "yellow", bold=True)
        if found
        else style.paint("OK", "green", bold=True)
    )
    if fixed:
        head = f"Fixed {_count(fixed, 'finding')}. {head}"
    files = f" in {len(reports)} files" if len(reports) > 1 else ""
    tail = f", {ignored} ignored by the spec" if ignored else ""
    tail += f", {_count(left_out, 'finding')} left out by --select or --ignore" if left_out else ""
    looked = f"{checked} gates checked{against}" if checked else "Combinations are checked once every key can be read"
    return f"{head}{files}. {looked}{tail}{_skipped(reports)}" if reports else f"{head}. Nothing was checked"


def by_file(reports: Sequence[Report], style: Style) -> str:
    """A line for each file with errors or warnings, where there are several files; empty for good news."""
    rows = [(_found(r.findings), r) for r in reports if r.errors or r.warnings]
    width = max((len(words) for words, _ in rows), default=0)
    return "\n".join(
        f"{style.paint(words.ljust(width), 'red' if report.errors else 'yellow')}  {printable(report.file)}"
        for words, report in rows
    )


def _found(items: Sequence[Finding]) -> str:
    errors, warnings = (sum(f.severity == level for f in items) for level in ("error", "warning"))
    parts = [_count(errors, "error") if errors else "", _count(warnings, "warning") if warnings else ""]
    return ", ".join(part for part in parts if part)


def _skipped(reports: Sequence[Report]) -> str:
    """The gates that could not look and what they lack; those about launching are only counted."""
    by_need: dict[str, list[str]] = {}
    for item in dict.fromkeys(item for report in reports for item in report.skipped):
        by_need.setdefault(item.needs, []).append(item.gate)
    later = len(by_need.pop("a launch", ()))
    asked = len(by_need.pop("the hosts' answers", ()))
    releases = sum(len(by_need.pop(need)) for need in list(by_need) if need.startswith("DeepSpeed "))
    parts = [f"{_some(gates)} ({_HINTS.get(need, f'needs {need}')})" for need, gates in by_need.items()]
    total = sum(map(len, by_need.values()))
    skipped = f", {total} skipped: {'; '.join(parts)}" if total else ""
    skipped += f", {releases} of other releases" if releases else ""
    skipped += f", {later} more on launch" if later else ""
    return skipped + (f", {asked} more in `harness preflight`" if asked else "")


_HINTS = {
    "world size": "no --hostfile or --world-size",
    "hosts": "no --hostfile",
    "model facts": "the shape of the model is not known",
    "the accelerator": "no `cluster.gpu`",
}


def _some(gates: Sequence[str]) -> str:
    shown = ", ".join(gates[:4])
    return shown if len(gates) <= 4 else f"{shown} and {len(gates) - 4} more"


def _count(number: int, word: str) -> str:
    return f"{number} {word}{'' if number == 1 else 's'}"


def _block(finding: Finding, source: Source | None, style: Style) -> str:
    head = style.paint(f"{finding.severity}[{finding.gate}]", _COLOUR[finding.severity], bold=True)
    lines = [f"{head}: {style.paint(printable(finding.message), '', bold=True)}"]
    if finding.place is not None:
        lines += _excerpt(finding, finding.place, source, style)
    for note in finding.notes:
        lines.append(f"   = note: {printable(note)}")
    if finding.fix is not None:
        effect = f"  ({printable(finding.fix.effect)})" if finding.fix.effect else ""
        lines.append(f"{style.paint('help', 'green', bold=True)}: {printable(finding.fix.title)}{effect}")
    return "\n".join(lines) + "\n"


def _excerpt(finding: Finding, place: Place, source: Source | None, style: Style) -> list[str]:
    shown = [Label(place, finding.label), *finding.related]
    shown = [label for label in shown if label.place.file == place.file]
    elsewhere = [label for label in finding.related if label.place.file != place.file]
    lines = [f"  {style.paint('-->', 'blue')} {_where(place, source, 'the command line, ')}"]
    quoted = _quote(shown, place, source, style) if source and place.length else []
    lines += quoted or ([f"   {style.paint('|', 'blue')} {printable(finding.label)}"] if finding.label else [])
    lines += [f"   = {_where(label.place, source, '--set ')}: {printable(label.text)}" for label in elsewhere]
    return lines


def _where(place: Place, source: Source | None, option: str) -> str:
    if place.file == "--set" and source:
        return option + _clip(source.lines("--set")[place.line - 1])
    return printable(str(place))


def _quote(labels: Sequence[Label], main: Place, source: Source, style: Style) -> list[str]:
    text = source.lines(main.file)
    labels = sorted(
        (label for label in labels if 0 < label.place.line <= len(text)), key=lambda label: label.place.line
    )
    if not labels or not any(text[label.place.line - 1].strip() for label in labels):
        return []
    width = max(2, len(str(labels[-1].place.line)))
    bar = style.paint("|", "blue")
    lines, last, start = [f"{' ' * width} {bar}"], 0, 0
    for label in labels:
        number, line = label.place.line, text[label.place.line - 1]
        if last and number > last + 1:
            lines.append("...")
        if number != last:
            start = _start(main if main.line == number else label.place, line)
            lines.append(f"{style.paint(str(number).rjust(width), 'blue')} {bar} {_clip(line, start)}")
        marked = _shown(line[label.place.column - 1 :][: label.place.length or 1])
        mark = ("^" if label.place is main else "-") * max(1, min(len(marked), 60))
        colour = "red" if label.place is main else "blue"
        if start < label.place.column <= start + _WIDTH:
            said = style.paint(f"{mark} {printable(label.text)}".rstrip(), colour)
            blank = " " * len(_CUT if start else "") + _pad(line[start:], label.place.column - start)
            lines.append(f"{' ' * width} {bar} {blank}{said}")
        last = number
    return [*lines, f"{' ' * width} {bar}"]


_WIDTH, _CUT = 160, "..."


def _start(place: Place, line: str) -> int:
    """How much of a long line is left out before the place that is shown."""
    far = len(line) > _WIDTH and place.column + place.length > _WIDTH - len(_CUT)
    return max(0, place.column - _WIDTH // 3) if far else 0


def _clip(line: str, start: int = 0) -> str:
    rest = line[start:].rstrip()
    shown = _shown(rest) if len(rest) <= _WIDTH else _shown(rest[: _WIDTH - len(_CUT)]) + _CUT
    return _CUT + shown if start else shown


def _shown(line: str) -> str:
    return printable(line, keep="\t")


def _pad(line: str, column: int) -> str:
    """Blanks up to the column, tabs kept, so that the mark stands below what it means."""
    before = line[: column - 1].ljust(column - 1)
    return "".join("\t" if char == "\t" else " " for char in _shown(before))
