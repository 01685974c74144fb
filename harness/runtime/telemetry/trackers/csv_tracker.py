# SPDX-License-Identifier: Apache-2.0
"""CSV files: one for each type of line that has curves."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from typing import Any

from harness.facts.metrics_schema import LINES
from harness.runtime.telemetry.trackers.tracker_backend import SCALAR_PREFIXES, TrackerTarget
from harness.side_file import SideFile


class CsvBackend:
    """One file a type of line. The columns are those of the schema, in its order."""

    def __init__(self, target: TrackerTarget) -> None:
        self._folder = target.folder / "csv"
        self._folder.mkdir(parents=True, exist_ok=True)
        self._files: dict[str, SideFile] = {}
        self._num_missing = 0

    def log(self, line: Mapping[str, Any]) -> None:
        """Log a line of metrics.jsonl."""
        kind = line["type"]
        if kind not in SCALAR_PREFIXES:
            return
        columns = ["time", *(f.name for f in LINES[kind].fields if f.kind in ("count", "number", "text", "flag"))]
        rows = [[line.get(name, "") for name in columns]]
        path = self._folder / f"{kind}.csv"
        if kind not in self._files:
            self._files[kind] = SideFile(str(path), lambda _: b"")  # a table has no line about a gap
        if not path.exists() or path.stat().st_size == 0:
            rows.insert(0, columns)
        self._num_missing += not self._files[kind].append(_to_csv(rows))

    def close(self) -> None:
        """Close the files. Raises OSError where rows are missing."""
        for file in self._files.values():
            file.close()
        if self._num_missing:
            raise OSError(f"{self._num_missing:,} rows are missing in {self._folder}, which the disk did not take")


def _to_csv(rows: Sequence[Sequence[object]]) -> bytes:
    text = io.StringIO(newline="")
    csv.writer(text).writerows(rows)
    return text.getvalue().encode()
