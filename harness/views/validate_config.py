# SPDX-License-Identifier: Apache-2.0
"""The outcome of `harness validate-config` and `harness upgrade-check`, as text or in a format for programs."""

from __future__ import annotations

from collections.abc import Sequence

from harness.check.check_file import CheckedFile
from harness.check.check_files import FileResult, ValidateOptions
from harness.findings import CheckOutcome
from harness.views import findings_text
from harness.views.style import Style, escape_unprintable


def render_validation(
    outcome: CheckOutcome, results: Sequence[FileResult], options: ValidateOptions, style: Style
) -> str:
    """The outcome as text. Diffs are left out where the fixed text itself is printed."""
    diffs = [] if options.prints_fixed_text else [_render_diff(result, style) for result in results]
    against = f" against DeepSpeed {outcome.deepspeed} ({outcome.origin})"
    summary = findings_text.format_summary(outcome.reports, style, against=against, general=outcome.general)
    parts = [*filter(None, diffs), *render_all_findings(outcome, [result.checked for result in results], style)]
    return "\n".join([*parts, f"{summary}{_format_passed_over(outcome)}{_format_fix_hint(results, options)}"])


def render_upgrade(outcome: CheckOutcome, files: Sequence[CheckedFile], style: Style) -> str:
    """The findings of `harness upgrade-check` as text."""
    against = f" under DeepSpeed {outcome.deepspeed}, {outcome.origin}"
    summary = findings_text.format_summary(outcome.reports, style, against=against, general=outcome.general)
    return "\n".join([*render_all_findings(outcome, files, style), summary])


def render_all_findings(outcome: CheckOutcome, files: Sequence[CheckedFile], style: Style) -> list[str]:
    """The findings of each file, those of the call itself, and a line a file where there are several."""
    parts = [
        findings_text.render_findings(file.report.findings, file.lines_of, style)
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
    """One line per fix that was not applied, with the reason."""
    return [
        escape_unprintable(f"not fixed in {result.checked.report.file}: {reason}")
        for result in results
        if result.fix_result is not None
        for reason in dict.fromkeys(result.fix_result.refused)
    ]


def _render_diff(result: FileResult, style: Style) -> str:
    from harness.views.findings_diff import format_diff

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
    """The number of findings that `--fix` can fix, or did not."""
    findings = [finding for result in results for finding in result.checked.report.findings]
    if options.diff:
        count = sum(len(result.fix_result.applied) for result in results if result.fix_result is not None)
        return f". `--fix` would fix {count}, nothing was written" if count else ". Nothing would be fixed"
    if not any(f.fix is not None and f.fix.sets for f in findings):
        return ""
    from harness.check.autofix import can_fix

    safe = sum(can_fix(f, unsafe=False) for f in findings)
    unsafe = sum(can_fix(f, unsafe=True) for f in findings) - safe
    if options.fix:
        return f". {unsafe} more could be fixed with `--unsafe-fixes`" if unsafe and not options.unsafe_fixes else ""
    return f". {safe} can be fixed with `--fix`" if safe else ""
