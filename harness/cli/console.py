# SPDX-License-Identifier: Apache-2.0
"""The end of a command: findings on stderr, and the exit code."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from harness.check.check_file import CheckedFile
from harness.errors import ExitCode
from harness.file_io import write_output_file
from harness.findings import Finding, Fix, LinesOf
from harness.run.resolved_run import ResolvedRun
from harness.views import findings_text
from harness.views.style import escape_unprintable, style_for

if TYPE_CHECKING:
    from harness.launching.setup.launch_request import LaunchRejected


class ConsoleLog:
    """Notes and warnings on stderr, while a launch is prepared."""

    def on_note(self, text: str) -> None:
        """Print a line."""
        log_to_stderr(text)

    def on_findings(self, findings: Sequence[Finding], lines_of: LinesOf | None) -> None:
        """Print warnings."""
        print_findings(findings, lines_of)


def log_to_stderr(text: str) -> None:
    """A note to stderr; what could move the cursor is escaped."""
    print(escape_unprintable(text, keep="\n"), file=sys.stderr)


def print_findings(items: Sequence[Finding], lines_of: LinesOf | None) -> None:
    """Findings to stderr, as text."""
    print(findings_text.render_findings(items, lines_of, style_for(sys.stderr)), file=sys.stderr)


def exit_rejected(rejected: LaunchRejected) -> NoReturn:
    """Print why there is no launch, and end the command."""
    if rejected.findings:
        print_findings(rejected.findings, rejected.lines_of)
    closing = f"{escape_unprintable(rejected.closing)}."
    if rejected.report is not None:
        closing = f"{findings_text.format_summary([rejected.report], style_for(sys.stderr))}. {closing}"
    print(closing, file=sys.stderr)
    exit_with(rejected.code)


def exit_on_errors(checked: CheckedFile, closing: str) -> ResolvedRun:
    """The run, with warnings printed; or, after all errors are printed, the end of the program."""
    run = print_errors(checked, closing)
    if run is None:
        exit_with(checked.code)
    return run


def print_errors(checked: CheckedFile, closing: str) -> ResolvedRun | None:
    """Print what was found; returns the run, or None where there are errors."""
    if checked.report.findings:
        print_findings(checked.report.findings, checked.lines_of)
    if checked.run is None or not checked.report.ok:
        print(f"{findings_text.format_summary([checked.report], style_for(sys.stderr))}. {closing}.", file=sys.stderr)
        return None
    return checked.run


def write_output(file: Path, text: str) -> ExitCode:
    """Write a file that the user named, and say so; where that fails, print the finding (RN003) and return its code."""
    try:
        write_output_file(file, text)
    except OSError as error:
        message = f"`{file}` cannot be written: {(error.strerror or str(error)).lower()}"
        fix = Fix("choose another file with `--output`")
        print_findings([Finding("RN003", "error", message, fix=fix)], None)
        return ExitCode.USAGE
    print(f"Wrote {file}.", file=sys.stderr)
    return ExitCode.OK


def exit_with(code: ExitCode | int) -> NoReturn:
    """End the command with this exit code, once its output is flushed."""
    sys.stdout.flush()
    raise SystemExit(int(code))
