# SPDX-License-Identifier: Apache-2.0
"""The outcome of `harness validate-config` and `harness upgrade-check`, as text or in a format for programs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from harness.check.check_file import CheckedFile
from harness.check.check_files import FileResult, ValidateOptions
from harness.findings import CheckOutcome, Finding
from harness.spec.parse.source import KeyPath, join_key
from harness.views import findings_text
from harness.views.style import Style, escape_unprintable


def render_validation(
    outcome: CheckOutcome, results: Sequence[FileResult], options: ValidateOptions, style: Style
) -> str:
    """The outcome as text: what was fixed, what is left, and a line with the numbers of both. Diffs are left out where
    the fixed text itself is printed.
    """
    diffs = [] if options.prints_fixed_text else [_render_diff(result, style) for result in results]
    fixed = [_list_fixed(result, options) for result in results]
    against = f" against DeepSpeed {outcome.deepspeed} ({outcome.origin})"
    summary = findings_text.format_summary(
        outcome.reports, style, against=against, general=outcome.general, verbose=options.verbose
    )
    files = [result.checked for result in results]
    parts = [*filter(None, diffs), *filter(None, fixed), *render_all_findings(outcome, files, style, mark_fixes=True)]
    return "\n".join([*parts, f"{summary}{_format_passed_over(outcome)}{_format_fix_hint(results, options)}"])


def render_upgrade(outcome: CheckOutcome, files: Sequence[CheckedFile], style: Style) -> str:
    """The findings of `harness upgrade-check` as text."""
    against = f" under DeepSpeed {outcome.deepspeed}, {outcome.origin}"
    summary = findings_text.format_summary(outcome.reports, style, against=against, general=outcome.general)
    return "\n".join([*render_all_findings(outcome, files, style), summary])


def render_all_findings(
    outcome: CheckOutcome, files: Sequence[CheckedFile], style: Style, *, mark_fixes: bool = False
) -> list[str]:
    """The findings of each file, those of the call itself, and a line a file where there are several."""
    parts = [
        findings_text.render_findings(file.report.findings, file.lines_of, style, mark_fixes=mark_fixes)
        for file in files
        if file.report.findings
    ]
    if outcome.general:
        parts.append(findings_text.render_findings(outcome.general, None, style))
    table = findings_text.render_file_table(outcome.reports, style) if len(outcome.reports) > 1 else ""
    return [*parts, f"{table}\n"] if table else parts


def render_for_programs(outcome: CheckOutcome, format: str) -> str:  # noqa: A002
    """The outcome as JSON, as GitHub annotations or as SARIF; empty where a format has nothing to say."""
    if format == "sarif":
        from harness.views.sarif import findings_as_sarif

        return findings_as_sarif(outcome)
    from harness.views import findings_json

    return findings_json.findings_as_json(outcome) if format == "json" else findings_json.findings_as_github(outcome)


def unapplied_fix_lines(results: Sequence[FileResult]) -> list[str]:
    """One line for each fix that was not applied, with the reason."""
    lines = []
    for result in results:
        fixes, file = result.fix_result, result.checked.report.file
        if fixes is None:
            continue
        for finding, reason in fixes.refused:
            lines.append(f"not fixed in {file}{_line_of(finding, ', line ')}: {finding.gate}: {reason}")
        if fixes.unwritten:
            lines.append(f"not fixed in {file}: the file was not changed: {fixes.unwritten}")
    return [escape_unprintable(line) for line in dict.fromkeys(lines)]


def _list_fixed(result: FileResult, options: ValidateOptions) -> str:
    """A line for each finding that is fixed: its line in the file as it was, its id, its key, and what was done."""
    fixes = result.fix_result
    if fixes is None or not fixes.fixed_findings:
        return ""
    lines = ["Would be fixed" if options.diff else "Fixed"]
    lines[0] += f" in {result.checked.report.file} (lines as they were before):"
    width = max(len(_line_of(finding)) for finding in fixes.fixed_findings)
    for finding in fixes.fixed_findings:
        edits = next((item.edits for item in fixes.applied if item.finding == finding), None)
        action = f"`{finding.key}`: resolved by another fix" if edits is None else _describe_edits(edits)
        lines.append(f"  {_line_of(finding).rjust(width)}  {finding.gate}  {action}")
    return "\n".join(map(escape_unprintable, lines)) + "\n"


def _describe_edits(edits: Mapping[KeyPath, Any]) -> str:
    changes = [
        f"`{join_key(path)}` {'removed' if value is None else f'set to {json.dumps(value)}'}"
        for path, value in edits.items()
    ]
    return ", ".join(changes)


def _line_of(finding: Finding, before: str = "") -> str:
    return f"{before}{finding.place.line}" if finding.place is not None else ""


def _render_diff(result: FileResult, style: Style) -> str:

    fixes = result.fix_result
    if fixes is None or not fixes.changed:
        return ""
    return _colour_diff(format_diff(result.checked.report.file, fixes.before, fixes.after), style)


def _colour_diff(diff: str, style: Style) -> str:
    colours = {"+": "green", "-": "red", "@": "cyan"}
    lines = diff.removesuffix("\n").split("\n")
    return "\n".join(style.paint(escape_unprintable(line, keep="\t"), colours.get(line[:1], "")) for line in lines)


def _format_passed_over(outcome: CheckOutcome) -> str:
    count = len(outcome.passed_over)
    return f". {count} other file{'' if count == 1 else 's'} skipped" if count else ""


def _format_fix_hint(results: Sequence[FileResult], options: ValidateOptions) -> str:
    """The numbers of marked findings that `--fix` can fix, or did not."""
    if options.diff:
        count = sum(len(result.fix_result.fixed_findings) for result in results if result.fix_result is not None)
        return f". `--fix` would fix {count}, nothing was written" if count else ". Nothing would be fixed"
    findings = [finding for result in results for finding in result.checked.report.findings]
    refused = [item.finding for result in results if result.fix_result for item in result.fix_result.refused]
    tried = {(finding.gate, finding.key) for finding in refused}
    marks = [findings_text.mark_of(finding) for finding in findings if (finding.gate, finding.key) not in tried]
    safe, unsafe = marks.count(findings_text.SAFE_MARK), marks.count(findings_text.UNSAFE_MARK)
    again = "another " if options.fix else ""
    parts = [f"{safe} {findings_text.SAFE_MARK} can be fixed with {again}`--fix`"] if safe else []
    if unsafe:
        again = again if options.unsafe_fixes else ""
        can = "" if parts else "can be fixed "
        parts.append(
            f"{unsafe} {findings_text.UNSAFE_MARK} {can}with {again}`--fix --unsafe-fixes`, which changes the run"
        )
    return f". {', '.join(parts)}" if parts else ""


def format_diff(file: str, before: str, after: str) -> str:
    """The change as a unified diff that `patch -p1` and `git apply` take."""
    from difflib import unified_diff

    name = escape_unprintable(file.removeprefix("./").lstrip("/"))
    lines = unified_diff(before.splitlines(keepends=True), after.splitlines(keepends=True), f"a/{name}", f"b/{name}")
    return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)
