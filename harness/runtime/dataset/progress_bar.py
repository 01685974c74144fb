# SPDX-License-Identifier: Apache-2.0
"""The progress of a preparation, on stderr: a bar or plain lines, by HARNESS_PROGRESS."""

from __future__ import annotations

import os
import sys
import time
from typing import TYPE_CHECKING

from harness.units import format_bytes, format_count, format_seconds

if TYPE_CHECKING:
    from rich.progress import Progress

_QUIET_SECONDS = 2.0
_LOG_INTERVAL_SECONDS = 10.0


class ProgressDisplay:
    """Counts bytes and records. `total`: bytes, 0 where they are unknown. `visible` False: prints nothing."""

    def __init__(self, total: int, *, visible: bool = True) -> None:
        kind = os.environ.get("HARNESS_PROGRESS", "bar" if sys.stderr.isatty() else "plain") if visible else "none"
        self._kind, self._total = kind, total
        self._bytes = self._records = self._skipped = 0
        self._bar: Progress | None = None

    def __enter__(self) -> ProgressDisplay:
        self._start_time = self._logged_at = time.monotonic()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def add_bytes(self, count: int) -> None:
        """Count bytes that were read."""
        self._bytes += count

    def add_records(self, count: int, skipped: int) -> None:
        """Count stored records; `skipped`: the total of skipped ones."""
        self._records, self._skipped = self._records + count, skipped
        now = time.monotonic()
        if self._kind == "bar" and now - self._start_time >= _QUIET_SECONDS:
            self._draw()
        elif self._kind == "plain" and now - self._logged_at >= _LOG_INTERVAL_SECONDS:
            self._logged_at = now
            print(f"preparing data: {self._format_line(now)}", file=sys.stderr, flush=True)  # noqa: T201

    def _format_line(self, now: float) -> str:
        parts = [f"{format_count(self._records)} records"]
        if self._skipped:
            parts.append(f"{self._skipped} left out")
        if self._total:
            seconds_left = (now - self._start_time) * (self._total - self._bytes) / max(1, self._bytes)
            parts.append(f"{format_bytes(self._bytes)} of {format_bytes(self._total)}")
            parts.append(f"{format_seconds(max(0.0, seconds_left))} left")
        return ", ".join(parts)

    def _draw(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

        if self._bar is None:
            self._bar = Progress(
                TextColumn("preparing data"),
                BarColumn(),
                TaskProgressColumn(),
                TextColumn("{task.fields[numbers]}"),
                TimeRemainingColumn(),
                console=Console(file=sys.stderr, force_terminal=True),
                refresh_per_second=4,
            )
            self._bar.add_task("data", total=self._total or None, numbers="")
            self._bar.start()
        skipped = f", {self._skipped} left out" if self._skipped else ""
        numbers = f"{format_count(self._records)} records{skipped}"
        self._bar.update(self._bar.task_ids[0], completed=min(self._bytes, self._total or self._bytes), numbers=numbers)
