# SPDX-License-Identifier: Apache-2.0
"""Exit codes, and the one exception that carries findings to the command line.

Exceptions are for control flow inside the harness; users always read findings.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum

from harness.findings import Finding, Fix


class ExitCode(IntEnum):
    """The exit codes of the program."""

    OK = 0
    FINDINGS = 1
    USAGE = 2
    BUG = 3
    PREFLIGHT = 4
    ENGINE_CHECK = 5
    UNKNOWN_CAUSE = 6
    NO_FAILURE_SEEN = 7
    NOT_UPLOADED = 8
    RETRY = 40
    RETRY_ELSEWHERE = 41
    CHANGE_AND_RETRY = 42
    STOP = 43
    HUNG = 124
    INTERRUPTED = 130
    PREEMPTED = 138
    BROKEN_PIPE = 141
    TERMINATED = 143


class UserError(Exception):
    """The input cannot be used; `findings` say why. Raised by loaders, caught by commands."""

    def __init__(self, findings: Iterable[Finding], code: ExitCode = ExitCode.FINDINGS) -> None:
        self.findings = tuple(findings)
        self.code = code
        super().__init__("; ".join(f.message for f in self.findings))


def user_error(
    gate: str,
    message: str,
    *,
    key: str = "",
    notes: tuple[str, ...] = (),
    fix: Fix | str | None = None,
    code: ExitCode = ExitCode.FINDINGS,
) -> UserError:
    """The exception for one error finding, to be raised by the caller; a fix that sets nothing is its words."""
    fix = Fix(fix) if isinstance(fix, str) else fix
    return UserError([Finding(gate, "error", message, key=key, notes=notes, fix=fix)], code)


class UnreadableKeyError(Exception):
    """Somebody reads a key of a file that cannot be read, as its value is wrong; the message is the key."""
