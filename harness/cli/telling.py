"""What `harness validate-config` prints for a person: diffs, findings, a line a file, and one line in the end."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from harness.cli.common import Checked, can_fix
from harness.findings import Outcome
from harness.views import text
from harness.views.style import Style, printable, style_for

if TYPE_CHECKING:
    from harness.cli.fixing import Fixed
    from harness.cli.validating import Options


def tell(outcome: Outcome, items: Sequence[tuple[Checked, Fixed | None]], options: Options) -> None:
    """All of it. With `--fix` and standard input, the mended text is the product, and the rest goes to stderr."""
    product = options.fix and not options.diff and "-" in options.files
    stream = sys.stderr if product else sys.stdout
    style = style_for(stream)
    if product:
        _mended_text(items)
    for checked, fixed in items:
        if fixed is not None:
            _changes(checked, fixed, style, show=not product)
    for checked, _ in items:
        if checked.report.findings:
            print(text.findings(checked.report.findings, checked.source, style), file=stream)
    if outcome.general:
        print(text.findings(outcome.general, None, style), file=stream)
    table = text.by_file(outcome.reports, style) if len(outcome.reports) > 1 else ""
    if table:
        print(f"{table}\n", file=stream)
    against = f" against DeepSpeed {outcome.deepspeed} ({outcome.origin})"
    summary = text.summary(outcome.reports, style, against=against, general=outcome.general)
    print(f"{summary}{_passed_over(outcome)}{_next(items, options)}", file=stream)


def _mended_text(items: Sequence[tuple[Checked, Fixed | None]]) -> None:
    for _, fixed in items:
        if fixed is not None:
            sys.stdout.write(fixed.after)


def _changes(checked: Checked, fixed: Fixed, style: Style, *, show: bool) -> None:
    from harness.cli.fixing import diff

    if show and fixed.changed:
        print(_painted(diff(checked.report.file, fixed.before, fixed.after), style))
    for reason in dict.fromkeys(fixed.refused):
        print(printable(f"not fixed in {checked.report.file}: {reason}"), file=sys.stderr)


def _painted(diff: str, style: Style) -> str:
    colours = {"+": "green", "-": "red", "@": "cyan"}
    lines = diff.removesuffix("\n").split("\n")
    return "\n".join(style.paint(printable(line, keep="\t"), colours.get(line[:1], "")) for line in lines)


def _passed_over(outcome: Outcome) -> str:
    count = len(outcome.passed_over)
    return f". {count} other file{'' if count == 1 else 's'} passed over" if count else ""


def _next(items: Sequence[tuple[Checked, Fixed | None]], options: Options) -> str:
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
