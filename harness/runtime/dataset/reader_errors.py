# SPDX-License-Identifier: Apache-2.0
"""Limits and errors that all readers of local files share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from harness.runtime.dataset.record import OnBytesRead, RawRecord
from harness.runtime.user_errors import user_error

MAX_RECORD_BYTES = 256 << 20


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
