# SPDX-License-Identifier: Apache-2.0
"""Errors in a user's input, raised and printed by a rank.

The rules themselves are where the input is read.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable

from harness.errors import user_error
from harness.findings import Finding
from harness.printed_text import escape_unprintable

__all__ = ["first_error_line", "format_findings", "print_findings", "user_error"]


def first_error_line(error: Exception) -> str:
    """The first line of a library's exception."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def format_findings(findings: Iterable[Finding]) -> list[str]:
    """`error[ID]: message` with its notes and its help, as plain lines for a rank's log."""
    out = []
    for finding in findings:
        out.append(f"{finding.severity}[{finding.gate}]: {escape_unprintable(finding.message)}")
        out += [f"  = note: {escape_unprintable(note)}" for note in finding.notes]
        if finding.fix:
            out.append(f"help: {escape_unprintable(finding.fix.title)}")
    return out


def print_findings(findings: Iterable[Finding]) -> None:
    """Print them to stderr."""
    sys.stderr.write("\n".join(format_findings(findings)) + "\n")
    sys.stderr.flush()
