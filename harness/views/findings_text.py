# SPDX-License-Identifier: Apache-2.0
"""Findings as text for a person: the message, an excerpt of the file, related places, notes and the fix.

This module alone turns findings into text, and escapes the control characters in keys, values, file names and lines.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

from harness.facts.environment_variables import is_secret
from harness.findings import UNREADABLE_KEYS, Finding, Label, LinesOf, Place, Report
from harness.units import pluralize
from harness.views.style import Style, escape_unprintable

_SEVERITY_COLOURS = {"error": "red", "warning": "yellow", "info": "cyan"}


MAX_PER_GATE = 50
"""Findings of one kind that are shown of one file; a file of another program can have thousands."""


SAFE_MARK, UNSAFE_MARK = "[*]", "[!]"
"""Marks of findings that `--fix` fixes, and of those that it fixes with `--unsafe-fixes` alone."""


def mark_of(finding: Finding) -> str:
    """The mark of a finding that `--fix` can fix; empty for others."""
    if finding.fix is None or not finding.fix.sets:
        return ""
    return SAFE_MARK if finding.fix.safe else UNSAFE_MARK


def render_findings(
    items: Sequence[Finding], lines_of: LinesOf | None, style: Style, *, mark_fixes: bool = False
) -> str:
    """Each finding as a block with its excerpt, blank lines between; empty for none. Of one kind the first are shown,
    and the rest are counted. `mark_fixes`: findings that `--fix` can fix have a mark.
    """
    limited, left = limit_per_gate(items)
    more = [f"... and {count:,} more of {gate}; `--format json` has all\n" for gate, count in left]
    blocks = [_render_finding(finding, lines_of, style, mark_fixes) for finding in limited if not _is_one_line(finding)]
    lines = [_render_line(finding, lines_of, style) for finding in limited if _is_one_line(finding)]
    if not blocks:
        return "\n".join(lines)
    return "\n".join([*blocks, *more, *(["\n".join(lines) + "\n"] if lines else [])])


def limit_per_gate(items: Sequence[Finding]) -> tuple[list[Finding], list[tuple[str, int]]]:
    """The first findings of each kind, and how many more there are of which."""
    counts: Counter[str] = Counter()
    limited = []
    for finding in items:
        counts[finding.gate] += 1
        if counts[finding.gate] <= MAX_PER_GATE:
            limited.append(finding)
    return limited, [(gate, count - MAX_PER_GATE) for gate, count in counts.items() if count > MAX_PER_GATE]


def format_summary(
    reports: Sequence[Report],
    style: Style,
    *,
    against: str = "",
    general: Sequence[Finding] = (),
    verbose: bool | None = None,
) -> str:
    """One line: the numbers of findings and of checked gates; `verbose` has the skipped gates with the reason. (None:
    the command has no `-v`.)
    """
    counts = _format_counts([*general, *(f for r in reports for f in r.findings)])
    ignored = sum(len(r.ignored) for r in reports)
    left_out = sum(len(r.left_out) for r in reports)
    fixed = sum(len(r.fixed) for r in reports)
    checked = max((r.checked for r in reports), default=0)
    bad = any(r.errors for r in reports) or any(f.is_error for f in general)
    head = (
        style.paint(f"Found {counts}", "red" if bad else "yellow", bold=True)
        if counts
        else style.paint("OK", "green", bold=True)
    )
    if fixed:
        head = f"Fixed {pluralize(fixed, 'finding')}. {head}"
    files = f" in {len(reports)} files" if len(reports) > 1 else ""
    tail = f", {ignored} ignored by the spec" if ignored else ""
    tail += f", {pluralize(left_out, 'finding')} left out by --select or --ignore" if left_out else ""
    if not reports:
        return f"{head}. Nothing was checked"
    looked = f"{checked} gates checked{against}" if checked else "No gate was checked"
    skipped = _format_skipped_gates(reports) if verbose else _count_skipped_gates(reports, verbose is not None)
    return f"{head}{files}. {looked}{tail}{skipped}"


def _count_skipped_gates(reports: Sequence[Report], has_option: bool) -> str:
    """The number of gates that could not look; those of other releases and of a launch are not missing."""
    skipped = {item for report in reports for item in report.skipped}
    unreadable = {item.gate for item in skipped if item.needs == UNREADABLE_KEYS}
    others = {item.gate for item in skipped if item.needs in _NEED_HINTS} - unreadable
    verb = "waits" if len(unreadable) == 1 else "wait"
    waiting = f", {len(unreadable)} {verb} for the keys that cannot be read" if unreadable else ""
    hint = " (`-v`)" if has_option else ""
    return f"{waiting}, {len(others)} skipped{hint}" if others else waiting


def render_file_table(reports: Sequence[Report], style: Style) -> str:
    """One line per file with errors or warnings, where there are several files; empty without any."""
    rows = [(_format_counts(r.findings), r) for r in reports if r.errors or r.warnings]
    width = max((len(counts) for counts, _ in rows), default=0)
    return "\n".join(
        f"{style.paint(counts.ljust(width), 'red' if report.errors else 'yellow')}  {escape_unprintable(report.file)}"
        for counts, report in rows
    )


def _format_counts(items: Sequence[Finding]) -> str:
    errors, warnings = (sum(f.severity == level for f in items) for level in ("error", "warning"))
    parts = [pluralize(errors, "error") if errors else "", pluralize(warnings, "warning") if warnings else ""]
    return ", ".join(part for part in parts if part)


def _format_skipped_gates(reports: Sequence[Report]) -> str:
    """The skipped gates and the facts that they lack; those about launching are only counted."""
    by_need: dict[str, list[str]] = {}
    for item in dict.fromkeys(item for report in reports for item in report.skipped):
        by_need.setdefault(item.needs, []).append(item.gate)
    later = len(by_need.pop("a launch", ()))
    num_preflight = len(by_need.pop("the hosts' answers", ()))
    releases = sum(len(by_need.pop(need)) for need in list(by_need) if need.startswith("DeepSpeed "))
    parts = [f"{_format_some(gates)} ({_NEED_HINTS.get(need, f'needs {need}')})" for need, gates in by_need.items()]
    total = sum(map(len, by_need.values()))
    skipped = f", {total} skipped: {'; '.join(parts)}" if total else ""
    skipped += f", {releases} of other releases" if releases else ""
    skipped += f", {later} more on launch" if later else ""
    return skipped + (f", {num_preflight} more in `harness preflight`" if num_preflight else "")


_NEED_HINTS = {
    UNREADABLE_KEYS: "they depend on keys that cannot be read",
    "world size": "no --hostfile or --world-size",
    "hosts": "no --hostfile",
    "model facts": "the model's sizes are not known",
    "the accelerator": "no `cluster.gpu`",
}


def _format_some(gates: Sequence[str]) -> str:
    names = ", ".join(gates[:4])
    return names if len(gates) <= 4 else f"{names} and {len(gates) - 4} more"


def _render_finding(finding: Finding, lines_of: LinesOf | None, style: Style, mark_fixes: bool) -> str:
    head = style.paint(f"{finding.severity}[{finding.gate}]", _SEVERITY_COLOURS[finding.severity], bold=True)
    mark = f" {mark_of(finding)}" if mark_fixes and mark_of(finding) else ""
    lines = [f"{head}: {style.paint(escape_unprintable(finding.message), '', bold=True)}{mark}"]
    if finding.place is not None:
        lines += _excerpt_lines(finding, finding.place, lines_of, style)
    for note in finding.notes:
        lines.append(f"   = note: {escape_unprintable(note)}")
    if finding.fix is not None:
        effect = f"  ({escape_unprintable(finding.fix.effect)})" if finding.fix.effect else ""
        lines.append(f"{style.paint('help', 'green', bold=True)}: {escape_unprintable(finding.fix.title)}{effect}")
    return "\n".join(lines) + "\n"


def _is_one_line(finding: Finding) -> bool:
    """Information without more to say than its message."""
    has_more = finding.label or finding.related or finding.notes or finding.fix is not None
    return finding.severity == "info" and finding.place is not None and not has_more


def _render_line(finding: Finding, lines_of: LinesOf | None, style: Style) -> str:
    place = "" if finding.place is None else _format_place(finding.place, lines_of, "the command line, ")
    head = style.paint(f"{finding.severity}[{finding.gate}]", _SEVERITY_COLOURS[finding.severity], bold=True)
    return f"{head}: {place}: {escape_unprintable(finding.message)}"


def _excerpt_lines(finding: Finding, place: Place, lines_of: LinesOf | None, style: Style) -> list[str]:
    labels = [Label(place, finding.label), *finding.related]
    labels = [label for label in labels if label.place.file == place.file]
    elsewhere = [label for label in finding.related if label.place.file != place.file]
    lines = [f"  {style.paint('-->', 'blue')} {_format_place(place, lines_of, 'the command line, ')}"]
    quoted = _quote_lines(labels, place, lines_of, style) if lines_of and place.length else []
    lines += quoted or ([f"   {style.paint('|', 'blue')} {escape_unprintable(finding.label)}"] if finding.label else [])
    lines += [
        f"   = {_format_place(label.place, lines_of, '--set ')}: {escape_unprintable(label.text)}"
        for label in elsewhere
    ]
    return lines


_VALUE = r"""(?P<value>"(?:[^"\\]|\\.)*"|'[^']*'|%s)"""
_OPTION = re.compile(r"(?<!\w)(?P<name>[A-Za-z_]\w*)[ \t]*=[ \t]*(?P<value>.+)")
_LINE = re.compile(r"""(?<!\w)(?P<name>[A-Za-z_]\w*)["']?[ \t]*:[ \t]*""" + _VALUE % ".+")
_IN_BRACES = re.compile(r"""(?<!\w)(?P<name>[A-Za-z_]\w*)["']?[ \t]*:[ \t]*""" + _VALUE % r"[^\s,{}][^,}]*")


def _mask_secrets(line: str) -> str:
    """The line with a `*` for each character of a secret of `launch.env`; columns stay. A name in small letters is a
    key such as `pad_token`: of these the form of the value counts alone.
    """
    if re.match(r"\s*[\w.]+\s*=", line):
        line = _OPTION.sub(_mask_value, line)
        return _IN_BRACES.sub(_mask_value, line) if "{" in line else line
    pattern = _IN_BRACES if "{" in line or '":' in line else _LINE
    return pattern.sub(_mask_value, line)


def _mask_value(match: re.Match[str]) -> str:
    name, value = match["name"] if match["name"].isupper() else "", match["value"]
    return match[0][: -len(value)] + "*" * len(value) if is_secret(name, value.strip("\"'")) else match[0]


def _format_place(place: Place, lines_of: LinesOf | None, option: str) -> str:
    if place.file == "--set" and lines_of:
        return option + _clip_line(_mask_secrets(lines_of("--set")[place.line - 1]))
    return escape_unprintable(str(place))


def _quote_lines(labels: Sequence[Label], main: Place, lines_of: LinesOf, style: Style) -> list[str]:
    text = lines_of(main.file)
    labels = sorted(
        (label for label in labels if 0 < label.place.line <= len(text)), key=lambda label: label.place.line
    )
    if not labels or not any(text[label.place.line - 1].strip() for label in labels):
        return []
    width = max(2, len(str(labels[-1].place.line)))
    bar = style.paint("|", "blue")
    lines, last, start = [f"{' ' * width} {bar}"], 0, 0
    for label in labels:
        number, line = label.place.line, _mask_secrets(text[label.place.line - 1])
        if last and number > last + 1:
            lines.append("...")
        if number != last:
            start = _clip_start(main if main.line == number else label.place, line)
            lines.append(f"{style.paint(str(number).rjust(width), 'blue')} {bar} {_clip_line(line, start)}")
        marked = _escape_line(line[label.place.column - 1 :][: label.place.length or 1])
        mark = ("^" if label.place is main else "-") * max(1, min(len(marked), 60))
        colour = "red" if label.place is main else "blue"
        if start < label.place.column <= start + _MAX_LINE_WIDTH:
            label_text = style.paint(f"{mark} {escape_unprintable(label.text)}".rstrip(), colour)
            blank = " " * len(_ELLIPSIS if start else "") + _padding_to(line[start:], label.place.column - start)
            lines.append(f"{' ' * width} {bar} {blank}{label_text}")
        last = number
    return [*lines, f"{' ' * width} {bar}"]


_MAX_LINE_WIDTH, _ELLIPSIS = 160, "..."


def _clip_start(place: Place, line: str) -> int:
    """The number of characters of a long line that are left out before the excerpt."""
    far = len(line) > _MAX_LINE_WIDTH and place.column + place.length > _MAX_LINE_WIDTH - len(_ELLIPSIS)
    return max(0, place.column - _MAX_LINE_WIDTH // 3) if far else 0


def _clip_line(line: str, start: int = 0) -> str:
    rest = line[start:].rstrip()
    clipped = (
        _escape_line(rest)
        if len(rest) <= _MAX_LINE_WIDTH
        else _escape_line(rest[: _MAX_LINE_WIDTH - len(_ELLIPSIS)]) + _ELLIPSIS
    )
    return _ELLIPSIS + clipped if start else clipped


def _escape_line(line: str) -> str:
    return escape_unprintable(line, keep="\t")


def _padding_to(line: str, column: int) -> str:
    """Blanks up to the column, tabs kept, so that the mark stands below its text."""
    before = line[: column - 1].ljust(column - 1)
    return "".join("\t" if char == "\t" else " " for char in _escape_line(before))
