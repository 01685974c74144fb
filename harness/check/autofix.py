# SPDX-License-Identifier: Apache-2.0
"""`--fix`: safe fixes in the text of a file, one after the other. Each is checked before it is applied.

Writes a file only where its findings become fewer; asks nobody.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from harness.check.check_file import CheckedFile
from harness.errors import UserError
from harness.file_io import read_regular, write_atomically
from harness.findings import Finding, sort_findings
from harness.gates.registry import all_gates
from harness.spec.parse.source import MAX_BYTES, KeyPath, decode, join_key, value_at
from harness.spec.text_editor import EditError, apply_edits, edits_of_fix

CheckText = Callable[[str], CheckedFile]


class AppliedFix(NamedTuple):
    """A finding that is fixed, at its place in the text as it was, and the edits under the user's own keys."""

    finding: Finding
    edits: Mapping[KeyPath, Any]


class RefusedFix(NamedTuple):
    """A fix that was not applied, and why."""

    finding: Finding
    reason: str


class FixResult(NamedTuple):
    """A file's text before and after, and what is left. Every finding of the first check that has a fix is in one of
    `applied`, `gone` (another fix took it away too) and `refused`; `unwritten` is why the file stays as it is.
    """

    before: str
    after: str
    checked: CheckedFile
    applied: tuple[AppliedFix, ...] = ()
    gone: tuple[Finding, ...] = ()
    refused: tuple[RefusedFix, ...] = ()
    unwritten: str = ""

    @property
    def changed(self) -> bool:
        """Is there anything to write?"""
        return self.after != self.before

    @property
    def fixed_findings(self) -> tuple[Finding, ...]:
        """The findings of the first check that are fixed, in the order of the file."""
        return sort_findings([*(item.finding for item in self.applied), *self.gone])


def can_fix(finding: Finding, *, unsafe: bool) -> bool:
    """Does the finding have a fix that `--fix` may apply?"""
    return finding.fix is not None and bool(finding.fix.sets) and (finding.fix.safe or unsafe)


def apply_fixes(file: str, text: str, check: CheckText, *, unsafe: bool) -> FixResult:
    """Apply the fixes of the findings that `check` has for this text, each where it helps; nothing is written.

    Findings that come up only after a fix are left for the next call: nobody has seen them yet.
    """
    checked = check(text)
    shown = [f for f in checked.report.findings if can_fix(f, unsafe=unsafe)]
    if not shown:
        return FixResult(text, text, checked)
    work = _FixSession(file, text, checked, check, shown, unsafe=unsafe)
    work.apply_all()
    left = {_key_of(f) for f in work.checked.report.findings}
    refused = {number: reason for number, reason in work.refused.items() if _key_of(shown[number]) in left}
    rest = [f for number, f in enumerate(shown) if number not in work.applied and number not in refused]
    found = {_finding_key(f) for f in work.checked.report.findings}
    gone = [f for f in rest if _finding_key(f) not in found]  # one that lost its fix to another is not gone
    return FixResult(
        text,
        work.text,
        work.checked,
        tuple(work.applied.values()),
        tuple(gone),
        tuple(RefusedFix(shown[number], reason) for number, reason in refused.items()),
    )


class _FixSession:
    """The text so far, and what became of each finding with a fix, by its number."""

    def __init__(
        self, file: str, text: str, checked: CheckedFile, check: CheckText, shown: list[Finding], *, unsafe: bool
    ) -> None:
        self.unsafe = unsafe
        self.file = file
        self.text = text
        self.checked = checked
        self.check = check
        self.shown = shown
        self.applied: dict[int, AppliedFix] = {}
        self.refused: dict[int, str] = {}

    def apply_all(self) -> None:
        """Try each fix, and those that were refused again while others succeed. Unknown keys come first: the right name
        of a section can answer what else is missing.
        """
        numbers = sorted(range(len(self.shown)), key=lambda number: self.shown[number].gate != "SP005")
        while numbers:
            count = len(self.applied)
            for number in numbers:
                self._try_fix(number)
            numbers = list(self.refused) if len(self.applied) > count else []

    def _try_fix(self, number: int) -> None:
        """Keep the fix if the finding is gone and no error is new. What is gone already needs none."""
        self.refused.pop(number, None)
        finding = self._find_again(self.shown[number])
        if finding is None:
            return
        try:
            sets = self._edits_of(finding)
            changed = apply_edits(self.text, self.file, sets)
            after = self.check(changed)
            self._reject_oscillation(after, sets)
            _require_improvement(self.checked, after, finding)
        except EditError as reason:
            self.refused[number] = str(reason)
            return
        self.text, self.checked = changed, after
        self.applied[number] = AppliedFix(self.shown[number]._replace(fix=finding.fix), sets)

    def _find_again(self, shown: Finding) -> Finding | None:
        """The finding as the text has it now; also under the new name of its key, where another fix renamed that."""
        candidates = [f for f in self.checked.report.findings if f.gate == shown.gate]
        same = next((f for f in candidates if _key_of(f) == _key_of(shown)), None)
        known = {_key_of(f) for f in self.shown}
        others = [f for f in candidates if _key_of(f) not in known]
        finding = same or (others[0] if len(others) == 1 else None)
        return finding if finding is not None and can_fix(finding, unsafe=self.unsafe) else None

    def _edits_of(self, finding: Finding) -> dict[KeyPath, Any]:
        if finding.fix is None or self.checked.source is None:
            raise EditError("the file cannot be read")
        return edits_of_fix(finding.fix, self.checked.source)

    def _reject_oscillation(self, after: CheckedFile, sets: dict[KeyPath, Any]) -> None:
        """Raises EditError when the fix of a finding that comes up now would bring back what was there before."""
        if self.checked.source is None or after.source is None:
            return
        before, old = self.checked.source.data, {_finding_key(f) for f in self.checked.report.findings}
        for finding in after.report.findings:
            if _finding_key(finding) in old or finding.fix is None or not can_fix(finding, unsafe=self.unsafe):
                continue
            try:
                then = {**sets, **edits_of_fix(finding.fix, after.source)}
            except EditError:
                continue  # nobody can apply it
            if all(then[path] == value_at(before, path) for path in sets):
                key = join_key(next(iter(sets)))
                raise EditError(f"{finding.gate} would then require the current `{key}`")


def _finding_key(finding: Finding) -> tuple[str, str, str]:
    return finding.gate, finding.key, finding.message


def _key_of(finding: Finding) -> tuple[str, str, tuple[str, ...]]:
    """The identity of a finding across fixes, which can change its words."""
    return finding.gate, finding.key, tuple(sorted(finding.fix.sets)) if finding.fix is not None else ()


def _require_improvement(before: CheckedFile, after: CheckedFile, finding: Finding) -> None:
    """Raises EditError when the text did not get better."""
    if before.run is not None and after.run is None:
        raise EditError("the file could not be read afterwards")
    left = {_finding_key(f) for f in after.report.findings}
    if _finding_key(finding) in left:
        raise EditError("the finding would still be there")
    old = {(f.gate, f.key) for f in _all_findings(before)}
    new = [f for f in _all_findings(after) if f.is_error and (f.gate, f.key) not in old]
    caused = next((f for f in new if _would_have_shown(f, before)), None)
    if caused is not None:
        raise EditError(f"it would cause an error: {caused.gate}, {caused.message}")


def _would_have_shown(finding: Finding, before: CheckedFile) -> bool:
    """Would the first check have had the finding too, if the text had been wrong already?

    A gate that could not look, and a key that was not read, hide mistakes: a fix reveals these and does not cause them.
    """
    if any(gate.gate == finding.gate for gate in before.report.skipped):
        return False
    return before.run is not None or (before.report.checked > 0 and finding.gate in {gate.id for gate in all_gates()})


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
