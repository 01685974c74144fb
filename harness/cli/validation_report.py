"""What `harness validate-config` prints for a person: diffs, findings, a line a file, and one line in the end."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from harness.check.check_file import CheckedFile, can_fix
from harness.findings import CheckOutcome
from harness.views import findings_text
from harness.views.style import Style, escape_unprintable, style_for

if TYPE_CHECKING:
    from harness.check.autofix import FixResult
    from harness.cli.validation import ValidateOptions


def print_report(
    outcome: CheckOutcome, items: Sequence[tuple[CheckedFile, FixResult | None]], options: ValidateOptions
) -> None:
    """All of it. With `--fix` and standard input, the mended text is the product, and the rest goes to stderr."""
    product = options.fix and not options.diff and "-" in options.files
    stream = sys.stderr if product else sys.stdout
    style = style_for(stream)
    if product:
        _print_fixed_text(items)
    for checked, fixed in items:
        if fixed is not None:
            _print_changes(checked, fixed, style, show=not product)
    for checked, _ in items:
        if checked.report.findings:
            print(findings_text.render_findings(checked.report.findings, checked.source, style), file=stream)
    if outcome.general:
        print(findings_text.render_findings(outcome.general, None, style), file=stream)
    table = findings_text.render_file_table(outcome.reports, style) if len(outcome.reports) > 1 else ""
    if table:
        print(f"{table}\n", file=stream)
    against = f" against DeepSpeed {outcome.deepspeed} ({outcome.origin})"
    summary = findings_text.format_summary(outcome.reports, style, against=against, general=outcome.general)
    print(f"{summary}{_format_passed_over(outcome)}{_format_fix_hint(items, options)}", file=stream)


def _print_fixed_text(items: Sequence[tuple[CheckedFile, FixResult | None]]) -> None:
    for _, fixed in items:
        if fixed is not None:
            sys.stdout.write(fixed.after)


def _print_changes(checked: CheckedFile, fixed: FixResult, style: Style, *, show: bool) -> None:
    from harness.check.autofix import format_diff

    if show and fixed.changed:
        print(_colour_diff(format_diff(checked.report.file, fixed.before, fixed.after), style))
    for reason in dict.fromkeys(fixed.refused):
        print(escape_unprintable(f"not fixed in {checked.report.file}: {reason}"), file=sys.stderr)


def _colour_diff(diff: str, style: Style) -> str:
    colours = {"+": "green", "-": "red", "@": "cyan"}
    lines = diff.removesuffix("\n").split("\n")
    return "\n".join(style.paint(escape_unprintable(line, keep="\t"), colours.get(line[:1], "")) for line in lines)


def _format_passed_over(outcome: CheckOutcome) -> str:
    count = len(outcome.passed_over)
    return f". {count} other file{'' if count == 1 else 's'} passed over" if count else ""


def _format_fix_hint(items: Sequence[tuple[CheckedFile, FixResult | None]], options: ValidateOptions) -> str:
    """What `--fix` could do, or what it left."""
    findings = [finding for checked, _ in items for finding in checked.report.findings]
    if options.diff:
        count = sum(len(fixed.applied) for _, fixed in items if fixed is not None)
        return f". `--fix` would fix {count}, nothing was written" if count else ". Nothing would be fixed"
    safe = sum(can_fix(f, unsafe=False) for f in findings)
    unsafe = sum(can_fix(f, unsafe=True) for f in findings) - safe
    if options.fix:
        return f". {unsafe} more could be fixed with `--unsafe-fixes`" if unsafe and not options.unsafe_fixes else ""
    return f". {safe} can be fixed with `--fix`" if safe else ""
