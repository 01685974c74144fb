"""The end of a command: findings on stderr, and the exit code."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import NoReturn

from harness.check.check_file import CheckedFile
from harness.errors import ExitCode
from harness.findings import Finding
from harness.plan.resolved_run import ResolvedRun
from harness.spec.parse.source import Source
from harness.views import findings_text
from harness.views.style import style_for


def print_findings(items: Sequence[Finding], source: Source | None) -> None:
    """Findings to stderr, as text."""
    print(findings_text.render_findings(items, source, style_for(sys.stderr)), file=sys.stderr)


def exit_on_errors(checked: CheckedFile, what_did_not_happen: str) -> ResolvedRun:
    """The run, with warnings printed; or, after all errors are printed, the end of the program."""
    if checked.report.findings:
        print_findings(checked.report.findings, checked.source)
    if checked.run is not None and checked.report.ok:
        return checked.run
    print(
        f"{findings_text.format_summary([checked.report], style_for(sys.stderr))}. {what_did_not_happen}.",
        file=sys.stderr,
    )
    raise SystemExit(int(checked.code))


def exit_with(code: ExitCode | int) -> NoReturn:
    """End the command with this exit code, once what it printed is out."""
    sys.stdout.flush()
    raise SystemExit(int(code))
