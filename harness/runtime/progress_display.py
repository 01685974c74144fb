# SPDX-License-Identifier: Apache-2.0
"""Progress of a run on rank 0's stderr: a bar, plain lines, or nothing, as HARNESS_PROGRESS says.

Only the supervisor knows if there is a terminal, since the launcher stands between it and the ranks.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from harness.units import format_count, format_seconds

_LINE_INTERVAL_SECONDS = 10.0
_LINE_INTERVAL_FRACTION = 0.1


class ProgressDisplay(Protocol):
    """Shows the progress of a run."""

    def show_step(self, line: Mapping[str, Any]) -> None:
        """A step is done: the fields of its line in metrics.jsonl."""

    def print_line(self, text: str) -> None:
        """A line that stays."""

    def close(self) -> None:
        """Stop showing progress."""


def make_progress_display(total: int, start: int, *, is_visible: bool) -> ProgressDisplay:
    """The display that HARNESS_PROGRESS names; none on ranks that are not visible."""
    kind = os.environ.get("HARNESS_PROGRESS", "bar" if sys.stderr.isatty() else "plain") if is_visible else "none"
    displays: dict[str, Callable[[int, int], ProgressDisplay]] = {"bar": ProgressBar, "plain": ProgressLines}
    return displays.get(kind, NoProgress)(total, start)


class NoProgress:
    """Shows nothing."""

    def __init__(self, total: int, start: int) -> None:
        pass

    def show_step(self, line: Mapping[str, Any]) -> None:
        """Nothing."""

    def print_line(self, text: str) -> None:
        """Nothing."""

    def close(self) -> None:
        """Nothing."""


class ProgressBar:
    """A bar with steps, loss, tokens per second and the time that is left."""

    def __init__(self, total: int, start: int) -> None:
        # stderr is a pipe of the launcher here; `bar` means that a terminal is at its other end.
        self._progress = Progress(
            TextColumn("train"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[numbers]}"),
            TimeRemainingColumn(),
            console=Console(file=sys.stderr, force_terminal=True),
            refresh_per_second=4,
        )
        self._task = self._progress.add_task("train", total=total, completed=start, numbers="")
        self._progress.start()

    def show_step(self, line: Mapping[str, Any]) -> None:
        """Move the bar."""
        numbers = f"loss {line['loss']:.3f}  {format_count(line['tokens_per_second'])} tokens/s"
        self._progress.update(self._task, completed=line["step"], numbers=numbers)

    def print_line(self, text: str) -> None:
        """Print above the bar."""
        self._progress.console.print(text, markup=False, highlight=False)

    def close(self) -> None:
        """Leave the bar as it stands."""
        self._progress.stop()


class ProgressLines:
    """A line every tenth of the run, or every 10 seconds, whichever is sooner."""

    def __init__(self, total: int, start: int) -> None:
        self._total, self._start = total, start
        self._started_at = self._printed_at = time.monotonic()
        self._printed_step = start

    def show_step(self, line: Mapping[str, Any]) -> None:
        """Print when it is time to."""
        now, step = time.monotonic(), line["step"]
        is_due = (
            step - self._printed_step >= self._total * _LINE_INTERVAL_FRACTION
            or now - self._printed_at >= _LINE_INTERVAL_SECONDS
        )
        if is_due or step == self._total:
            seconds_left = (now - self._started_at) / (step - self._start) * (self._total - step)
            speed = f"{format_count(line['tokens_per_second'])} tokens/s"
            self.print_line(
                f"step {step}/{self._total}  loss {line['loss']:.3f}  {speed}  {format_seconds(seconds_left)} left"
            )
            self._printed_at, self._printed_step = now, step

    def print_line(self, text: str) -> None:
        """Print now."""
        sys.stderr.write(text + "\n")
        sys.stderr.flush()

    def close(self) -> None:
        """Nothing is open."""
