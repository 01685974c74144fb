# SPDX-License-Identifier: Apache-2.0
"""CSV files: one for each type of line that has curves."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from typing import Any

from harness.facts.metrics_schema import LINES
from harness.runtime.telemetry.trackers.tracker_backend import SCALAR_PREFIXES, TrackerTarget


class CsvBackend:
    """One file a type of line. The columns are those of the schema, in its order."""

    def __init__(self, target: TrackerTarget) -> None:
        self._folder = target.folder / "csv"
        self._folder.mkdir(parents=True, exist_ok=True)
        self._files: dict[str, Any] = {}

    def log(self, line: Mapping[str, Any]) -> None:
        """Log a line of metrics.jsonl."""
        kind = line["type"]
        if kind not in SCALAR_PREFIXES:
            return
        columns = ["time", *(f.name for f in LINES[kind].fields if f.kind in ("count", "number", "text", "flag"))]
        if kind not in self._files:
            path = self._folder / f"{kind}.csv"
            is_empty = not path.exists() or path.stat().st_size == 0
            self._files[kind] = path.open("a", newline="", encoding="utf-8")
            if is_empty:
                csv.writer(self._files[kind]).writerow(columns)
        csv.writer(self._files[kind]).writerow([line.get(name, "") for name in columns])
        self._files[kind].flush()

    def close(self) -> None:
        """Flush and close."""
        for file in self._files.values():
            file.close()
