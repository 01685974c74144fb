# SPDX-License-Identifier: Apache-2.0
"""`metrics.jsonl`: one JSON object a line, from rank 0, written at once, so that a killed run keeps its lines. A row
that the disk does not take is dropped, counted and reported; it never ends the run.

The fields of a line are in `harness.facts.metrics_schema`; nothing is measured here.
"""

from __future__ import annotations

import contextlib
import json
import math
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from pydantic_core import PydanticSerializationError, to_json

from harness.facts.metrics_schema import SCHEMA_VERSION as FORMAT_VERSION
from harness.secret_text import hide_passwords_in
from harness.side_file import SideFile

__all__ = ["FORMAT_VERSION", "MetricsWriter"]


class RowListener(Protocol):
    """Gets each row of a run: the trackers."""

    def enqueue(self, row: Mapping[str, Any]) -> None:
        """A row that was written, with None for values that are not finite. Neither raises nor takes long."""

    def close(self) -> None:
        """The last row was written; rows about the listener itself may follow."""


class MetricsWriter:
    """The file. On ranks other than 0 (`path` None) `write` does nothing."""

    def __init__(self, path: Path | None) -> None:
        self._file = SideFile(str(path), _describe_gap) if path else None
        self.listener: RowListener | None = None
        self._started_at = time.monotonic()

    @property
    def is_writer(self) -> bool:
        """False on the ranks that write nothing."""
        return self._file is not None

    def write(self, kind: str, **fields: Any) -> None:
        """Append one line `{"type": kind, ...}`; fields that are None are left out, and a value that is not finite is
        null, since JSON has no NaN. Trackers get the same row.
        """
        if kind == "run":
            self._started_at = time.monotonic()
        if self._file:
            known = {k: hide_passwords_in(v) for k, v in fields.items() if v is not None}
            row = {"type": kind, **known, "time": round(time.time(), 3)}
            self._append(self._file, _encode_line(row) + b"\n")
            if self.listener is not None:
                self.listener.enqueue({k: _finite_or_none(v) for k, v in row.items()})

    def _append(self, file: SideFile, line: bytes) -> None:
        num_dropped = file.num_dropped
        if file.append(line):
            if num_dropped:
                _warn(f"metrics.jsonl can be written again; {_count_rows(num_dropped)} missing in it")
        elif not num_dropped:
            _warn(f"metrics.jsonl cannot be written ({file.error}): training continues, and its rows are dropped")

    @property
    def elapsed_seconds(self) -> float:
        """Since the line `run`."""
        return round(time.monotonic() - self._started_at, 3)

    def close(self) -> None:
        """Close the listener, then the file."""
        if self.listener is not None:
            self.listener.close()
            self.listener = None
        if self._file:
            self._file.close()
            if self._file.num_dropped:
                _warn(f"the last {_count_rows(self._file.num_dropped)} missing in metrics.jsonl: {self._file.error}")


def _describe_gap(file: SideFile) -> bytes:
    fields = {"rows": file.num_dropped, "error": file.error, "time": round(time.time(), 3)}
    return _encode_line({"type": "rows_dropped", **fields}) + b"\n"


def _count_rows(count: int) -> str:
    return "row is" if count == 1 else f"{count:,} rows are"


def _warn(text: str) -> None:
    with contextlib.suppress(OSError):
        print(f"warning: {text}", file=sys.stderr, flush=True)  # noqa: T201


def _encode_line(row: Mapping[str, Any]) -> bytes:
    """One line of JSON, five times as fast as `json`. A string that is not UTF-8 is written with escapes."""
    try:
        return to_json(row, inf_nan_mode="null")
    except PydanticSerializationError:
        return json.dumps(row).encode()


def _finite_or_none(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value
