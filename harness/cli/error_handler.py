# SPDX-License-Identifier: Apache-2.0
"""The ends of a command that cannot do its work: refused input, a full disk, a crash."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable
from functools import wraps
from typing import Any, NoReturn

from harness.errors import ExitCode, UserError
from harness.findings import LinesOf


def exit_refused(refused: UserError, what_did_not_happen: str, lines_of: LinesOf | None = None) -> NoReturn:
    """Print the findings and what therefore did not happen, then end the command."""
    from harness.cli.console import exit_with, print_findings

    print_findings(refused.findings, lines_of)
    print(f"{what_did_not_happen}.", file=sys.stderr)
    exit_with(refused.code)


def with_broken_pipe(command: Callable[..., None]) -> Callable[..., None]:
    """The command, with exit code 141 where the reader of its output has gone; typer would end it with 1."""

    @wraps(command)
    def run(*arguments: Any, **options: Any) -> None:
        try:
            command(*arguments, **options)
            sys.stdout.flush()
        except BrokenPipeError:
            exit_broken_pipe()

    return run


def exit_broken_pipe() -> NoReturn:
    """End the program because the reader of its output has gone."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # else the interpreter reports the pipe once more at its end
    sys.exit(ExitCode.BROKEN_PIPE)


def report_full_disk(error: Exception) -> ExitCode | None:
    """Report a full disk under stdout; None for any other error."""
    if isinstance(error, OSError) and error.errno == errno.ENOSPC:
        print(f"error: the output could not be written: {error.strerror}", file=sys.stderr)
        return ExitCode.USAGE
    return None


def report_crash() -> ExitCode:
    """Write the traceback of the current exception to a log that the user can attach to a bug report."""
    import shlex
    import tempfile
    import traceback

    from harness.views.redaction import hide_tokens
    from harness.views.style import escape_unprintable

    text = f"harness {shlex.join(sys.argv[1:])}\nPython {sys.version}\n\n{traceback.format_exc()}"
    text = hide_tokens(text)
    with tempfile.NamedTemporaryFile(
        "w", prefix="harness-crash-", suffix=".log", delete=False, encoding="utf-8", errors="backslashreplace"
    ) as log:
        log.write(text)
    last_line = escape_unprintable(hide_tokens(traceback.format_exc().strip().splitlines()[-1]))
    print(f"error: the harness itself failed: {last_line}", file=sys.stderr)
    print(f"help: this is a bug in harness; please report it and attach {log.name}", file=sys.stderr)
    return ExitCode.BUG
