# SPDX-License-Identifier: Apache-2.0
"""A raw record, or the reason that it cannot be used. `bad_records.py` has the policy for the latter. Limits and
errors that all readers of local files share.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.runtime.user_errors import user_error

MAX_RECORD_BYTES = 256 << 20
OnBytesRead = Callable[[int], None]
"""A callback of a reader: so many more bytes were read."""

BAD_RECORD_KINDS: dict[str, tuple[str, str]] = {
    "bad-utf-8": ("MD113", "convert the file to UTF-8"),
    "bad-json": ("MD120", "fix the line: one JSON object per line"),
    "missing-key": ("MD112", "fix the record, or name its columns in `data`"),
    "wrong-type": ("MD112", "fix the record"),
    "empty": ("MD121", "remove the record"),
    "too-long": ("MD122", "set a longer `data.max_length`, or `data.excess_length_strategy: truncate`"),
    "missing-turn": ("MD123", "fix the record: a chat needs an assistant turn"),
    "sharegpt-roles": (
        "MD123",
        "rename the roles, or use ShareGPT's format: `conversations` with `from` and `value`",
    ),
    "bad-roles": ("MD123", "fix the record, or set a `data.chat_template` that accepts its turns"),
    "unknown-role": (
        "MD123",
        "rename the role; a call of a tool is an `assistant` turn with `tool_calls` in `messages`",
    ),
    "parts-not-usable": ("MD123", "write each `content` as one text, or set a `data.chat_template` that accepts parts"),
    "nothing-to-train-on": ("MD124", "set a longer `data.max_length`, or remove the record"),
    "long-answer": ("MD122", "set a longer `data.max_length`, or `data.excess_length_strategy: drop`"),
    "same-answers": ("MD121", "remove the record: it says nothing about what is preferred"),
    "bad-row": ("MD120", "fix the row: as many fields as the header has"),
}
"""By kind: the id of the finding, and its fix."""


class BadRecord(Exception):
    """A record that cannot be used. `kind` is one of BAD_RECORD_KINDS, `reason` ends a sentence about the record."""

    def __init__(self, kind: str, reason: str) -> None:
        super().__init__(kind, reason)
        self.kind, self.reason = kind, reason


@dataclass(frozen=True, slots=True)
class RawRecord:
    """The output of a reader: `number` counts lines or rows from 1; `value` is undecoded JSON (bytes), a map of
    columns, a text, or the reason why there is no value.
    """

    number: int
    value: bytes | dict[str, Any] | str | BadRecord
    is_last: bool = True
    """False: a part of a long text whose rest follows."""


@dataclass(frozen=True, slots=True)
class SourcePart:
    """One file or data set of a source. `read` takes a callback that counts bytes."""

    name: str
    unit: str
    size: int
    identity: str
    read: Callable[[OnBytesRead], Iterator[RawRecord]]

    def describe_record(self, number: int) -> str:
        """The name of record `number` in a message."""
        return self.describe_records([number])

    def describe_records(self, numbers: Sequence[int]) -> str:
        """The names of several records: ``a.jsonl`, lines 2, 5`."""
        if not self.unit:
            return f"`{self.name}`"
        unit = self.unit if len(numbers) == 1 else f"{self.unit}s"
        return f"`{self.name}`, {unit} {', '.join(map(str, numbers))}"


def has_undecoded_bytes(value: Any) -> bool:
    """Does a text in the value hold bytes that `surrogateescape` could not decode?"""
    if isinstance(value, str):
        return not value.isascii() and any("\udc80" <= c <= "\udcff" for c in value)
    if isinstance(value, dict):
        return any(has_undecoded_bytes(v) for v in value.values())
    return isinstance(value, list) and any(has_undecoded_bytes(v) for v in value)


def report_os_errors(
    read: Callable[[OnBytesRead], Iterator[RawRecord]], path: Path, key: str
) -> Callable[[OnBytesRead], Iterator[RawRecord]]:
    """`read`, with an OSError as a finding (MD111)."""

    def read_or_raise(on_bytes_read: OnBytesRead) -> Iterator[RawRecord]:
        try:
            yield from read(on_bytes_read)
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            raise user_error("MD111", f"`{path}` cannot be read: {reason}", key=key) from None

    return read_or_raise
