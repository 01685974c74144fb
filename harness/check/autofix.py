# SPDX-License-Identifier: Apache-2.0
"""`--fix`: safe fixes in the text of a file, one after the other. Each is checked before it is applied.

Writes a file only where its findings become fewer; asks nobody.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from harness.check.check_file import CheckedFile
from harness.errors import UserError
from harness.file_io import read_regular, write_atomically
from harness.findings import Finding
from harness.spec.parse.source import MAX_BYTES, KeyPath, decode, join_key, value_at
from harness.spec.text_editor import EditError, apply_edits, edits_of_fix

CheckText = Callable[[str], CheckedFile]
MAX_ROUNDS = 200


class FixResult(NamedTuple):
    """A file's text before and after, what was fixed, what is left, and what could not be fixed and why."""

    before: str
    after: str
    checked: CheckedFile
    applied: tuple[Finding, ...] = ()
    refused: tuple[str, ...] = ()

    @property
    def changed(self) -> bool:
        """Is there anything to write?"""
        return self.after != self.before


def can_fix(finding: Finding, *, unsafe: bool) -> bool:
    """Does the finding have a fix that `--fix` may apply?"""
    return finding.fix is not None and bool(finding.fix.sets) and (finding.fix.safe or unsafe)


def apply_fixes(file: str, text: str, check: CheckText, *, unsafe: bool) -> FixResult:
    """Apply fixes until none is left that helps. `check` judges a text; nothing is written."""
    checked = check(text)
    if checked.run is None and not any(can_fix(f, unsafe=unsafe) for f in checked.report.findings):
        return FixResult(text, text, checked)
    work = _FixSession(file, text, checked, check, unsafe=unsafe)
    for _ in range(MAX_ROUNDS):
        finding = next((f for f in work.checked.report.findings if can_fix(f, unsafe=unsafe) and work.is_new(f)), None)
        if finding is None:
            break
        work.try_fix(finding)
    return FixResult(text, work.text, work.checked, tuple(work.applied), tuple(work.refused))


class _FixSession:
    """The text so far, what was done to it, and what was tried."""

    def __init__(self, file: str, text: str, checked: CheckedFile, check: CheckText, *, unsafe: bool) -> None:
        self.unsafe = unsafe
        self.file = file
        self.text = text
        self.checked = checked
        self.check = check
        self.applied: list[Finding] = []
        self.refused: list[str] = []
        self.attempted: set[tuple[str, str, str]] = set()

    def is_new(self, finding: Finding) -> bool:
        return _finding_key(finding) not in self.attempted

    def try_fix(self, finding: Finding) -> None:
        """Keep the fix if the finding is gone and no error is new."""
        self.attempted.add(_finding_key(finding))
        try:
            sets = self._edits_of(finding)
            changed = apply_edits(self.text, self.file, sets)
            after = self.check(changed)
            self._reject_oscillation(after, sets)
            _require_improvement(self.checked, after, finding)
        except EditError as reason:
            self.refused.append(f"{finding.gate}: {reason}")
            return
        self.text, self.checked = changed, after
        self.applied.append(finding)

    def _edits_of(self, finding: Finding) -> dict[KeyPath, Any]:
        if finding.fix is None or self.checked.source is None:
            raise EditError("the file cannot be read")
        return edits_of_fix(finding.fix, self.checked.source)

    def _reject_oscillation(self, after: CheckedFile, sets: dict[KeyPath, Any]) -> None:
        """Raises EditError when a finding that comes up now would set a key back to what it was."""
        if self.checked.source is None or after.source is None:
            return
        old = {_finding_key(f) for f in self.checked.report.findings}
        for finding in after.report.findings:
            if _finding_key(finding) in old or finding.fix is None or not can_fix(finding, unsafe=self.unsafe):
                continue
            for path, value in edits_of_fix(finding.fix, after.source).items():
                if path in sets and sets[path] != value and value_at(self.checked.source.data, path) == value:
                    raise EditError(f"{finding.gate} would then require the current `{join_key(path)}`")


def _finding_key(finding: Finding) -> tuple[str, str, str]:
    return finding.gate, finding.key, finding.message


def _require_improvement(before: CheckedFile, after: CheckedFile, finding: Finding) -> None:
    """Raises EditError when the text did not get better."""
    if before.run is not None and after.run is None:
        raise EditError("the file could not be read afterwards")
    left = {_finding_key(f) for f in after.report.findings}
    if _finding_key(finding) in left:
        raise EditError("the finding would still be there")
    old = {(f.gate, f.key) for f in _all_findings(before)}
    new = [f for f in _all_findings(after) if f.is_error and (f.gate, f.key) not in old]
    if new and before.run is not None:
        raise EditError(f"it would cause an error: {new[0].gate}, {new[0].message}")


def _all_findings(checked: CheckedFile) -> tuple[Finding, ...]:
    """Also what `--select` leaves out: a fix must not break what nobody looks at."""
    return (*checked.report.findings, *checked.report.left_out)


class OriginalFile(NamedTuple):
    """A file as it lies on the disk: its bytes, and the text without byte order mark and carriage returns."""

    content: bytes
    text: str

    def encode(self, text: str) -> str | None:
        """A new text with the line ends and the byte order mark of the old; None where line ends were mixed."""
        old = self.content.decode("utf-8", "replace")
        if "\r" in old:
            if "\r" in old.replace("\r\n", "") or "\n" in old.replace("\r\n", ""):
                return None
            text = text.replace("\n", "\r\n")
        return "\ufeff" + text if old.startswith("\ufeff") else text


def read_original(file: str) -> OriginalFile:
    """The file to fix. Raises UserError when it is no text, OSError when it cannot be read."""
    content = read_regular(Path(file), MAX_BYTES)
    return OriginalFile(content, decode(content, file))


def write_fixed(file: str, original: OriginalFile, text: str) -> str | None:
    """Replace the file; None when that was done, else why not, in words."""
    encoded = original.encode(text)
    if encoded is None:
        return "its line ends are mixed"
    try:
        if read_regular(Path(file), MAX_BYTES) != original.content:
            return "it was changed at the same time"
        if not os.access(file, os.W_OK):
            return "it is not writable"
        write_atomically(Path(file), encoded)
    except OSError as error:
        return (error.strerror or str(error)).lower()
    return None


def read_if_possible(file: str) -> OriginalFile | None:
    """The file to fix; None where it cannot be read, which its check then reports."""
    try:
        return read_original(file) if file != "-" else None
    except (OSError, ValueError, UserError):
        return None
