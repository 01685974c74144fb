"""`--fix`: safe fixes in the text of a file, one after the other, each checked before it is kept.

Writes only what is better than what was there; asks nobody.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from harness.cli.common import Checked, can_fix
from harness.errors import Refused
from harness.files import read_regular, write_atomically
from harness.findings import Finding
from harness.spec.edit import CannotEdit, apply, get, paths_of
from harness.spec.source import MAX_BYTES, decode, dotted
from harness.spec.source import Path as KeyPath
from harness.views.style import printable

Check = Callable[[str], Checked]
MAX_ROUNDS = 200


class Fixed(NamedTuple):
    """A file's text before and after, what was fixed, what is left, and what could not be fixed and why."""

    before: str
    after: str
    checked: Checked
    applied: tuple[Finding, ...] = ()
    refused: tuple[str, ...] = ()

    @property
    def changed(self) -> bool:
        """Is there anything to write?"""
        return self.after != self.before


def fix(file: str, text: str, check: Check, *, unsafe: bool) -> Fixed:
    """Apply fixes until none is left that helps. `check` judges a text; nothing is written."""
    checked = check(text)
    if checked.run is None and not any(can_fix(f, unsafe=unsafe) for f in checked.report.findings):
        return Fixed(text, text, checked)
    work = _Work(file, text, checked, check, unsafe=unsafe)
    for _ in range(MAX_ROUNDS):
        finding = next((f for f in work.checked.report.findings if can_fix(f, unsafe=unsafe) and work.is_new(f)), None)
        if finding is None:
            break
        work.attempt(finding)
    return Fixed(text, work.text, work.checked, tuple(work.applied), tuple(work.refused))


class _Work:
    """The text so far, what was done to it, and what was tried."""

    def __init__(self, file: str, text: str, checked: Checked, check: Check, *, unsafe: bool) -> None:
        self.unsafe = unsafe
        self.file = file
        self.text = text
        self.checked = checked
        self.check = check
        self.applied: list[Finding] = []
        self.refused: list[str] = []
        self.tried: set[tuple[str, str, str]] = set()

    def is_new(self, finding: Finding) -> bool:
        return _name(finding) not in self.tried

    def attempt(self, finding: Finding) -> None:
        """Keep the fix if the finding is gone and no error is new."""
        self.tried.add(_name(finding))
        try:
            sets = self._sets(finding)
            changed = apply(self.text, self.file, sets)
            after = self.check(changed)
            self._refuse_to_and_fro(after, sets)
            _compare(self.checked, after, finding)
        except CannotEdit as reason:
            self.refused.append(f"{finding.gate}: {reason}")
            return
        self.text, self.checked = changed, after
        self.applied.append(finding)

    def _sets(self, finding: Finding) -> dict[KeyPath, Any]:
        if finding.fix is None or self.checked.source is None:
            raise CannotEdit("the file cannot be read")
        return paths_of(finding.fix, self.checked.source)

    def _refuse_to_and_fro(self, after: Checked, sets: dict[KeyPath, Any]) -> None:
        """Raises CannotEdit when a finding that comes up now would set a key back to what it was."""
        if self.checked.source is None or after.source is None:
            return
        old = {_name(f) for f in self.checked.report.findings}
        for finding in after.report.findings:
            if _name(finding) in old or finding.fix is None or not can_fix(finding, unsafe=self.unsafe):
                continue
            for path, value in paths_of(finding.fix, after.source).items():
                if path in sets and sets[path] != value and get(self.checked.source.data, path) == value:
                    raise CannotEdit(f"{finding.gate} would then want `{dotted(path)}` as it is now")


def _name(finding: Finding) -> tuple[str, str, str]:
    return finding.gate, finding.key, finding.message


def _compare(before: Checked, after: Checked, finding: Finding) -> None:
    """Raises CannotEdit when the text did not get better."""
    if before.run is not None and after.run is None:
        raise CannotEdit("the file could not be read afterwards")
    left = {_name(f) for f in after.report.findings}
    if _name(finding) in left:
        raise CannotEdit("the finding would still be there")
    old = {(f.gate, f.key) for f in _everything(before)}
    new = [f for f in _everything(after) if f.is_error and (f.gate, f.key) not in old]
    if new and before.run is not None:
        raise CannotEdit(f"it would bring an error: {new[0].gate}, {new[0].message}")


def _everything(checked: Checked) -> tuple[Finding, ...]:
    """Also what `--select` leaves out: a fix must not break what nobody looks at."""
    return (*checked.report.findings, *checked.report.left_out)


class Original(NamedTuple):
    """A file as it lies on the disk: its bytes, and the text without byte order mark and carriage returns."""

    content: bytes
    text: str

    def encoded(self, text: str) -> str | None:
        """A new text with the line ends and the byte order mark of the old; None where line ends were mixed."""
        old = self.content.decode("utf-8", "replace")
        if "\r" in old:
            if "\r" in old.replace("\r\n", "") or "\n" in old.replace("\r\n", ""):
                return None
            text = text.replace("\n", "\r\n")
        return "\ufeff" + text if old.startswith("\ufeff") else text


def read_original(file: str) -> Original:
    """The file to be mended. Raises Refused when it is no text, OSError when it cannot be read."""
    content = read_regular(Path(file), MAX_BYTES)
    return Original(content, decode(content, file))


def write_fixed(file: str, original: Original, text: str) -> str | None:
    """Replace the file; None when that was done, else why not, in words."""
    encoded = original.encoded(text)
    if encoded is None:
        return "its line ends are mixed"
    try:
        if read_regular(Path(file), MAX_BYTES) != original.content:
            return "it was changed meanwhile"
        if not os.access(file, os.W_OK):
            return "it may not be written"
        write_atomically(Path(file), encoded)
    except OSError as error:
        return (error.strerror or str(error)).lower()
    return None


def diff(file: str, before: str, after: str) -> str:
    """The change as a unified diff that `patch -p1` and `git apply` take."""
    from difflib import unified_diff

    name = printable(file.removeprefix("./").lstrip("/"))
    lines = unified_diff(before.splitlines(keepends=True), after.splitlines(keepends=True), f"a/{name}", f"b/{name}")
    return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)


def readable(file: str) -> Original | None:
    """The file to be mended; None where it cannot be read, which its check then tells."""
    try:
        return read_original(file) if file != "-" else None
    except (OSError, ValueError, Refused):
        return None


def told(refused: Sequence[str], file: str) -> list[str]:
    """Lines for standard error about fixes that were not applied."""
    return [f"not fixed in {file}: {reason}" for reason in dict.fromkeys(refused)]
