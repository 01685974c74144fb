"""What people see while a run goes on, on rank 0's stderr: a bar, plain lines, or nothing, as HARNESS_PROGRESS says.

Whether a terminal is there only the supervisor knows, since the launcher stands between it and the ranks.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping
from typing import Any, Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from harness.units import format_count, format_seconds

_PLAIN_EVERY_SECONDS = 10.0
_PLAIN_EVERY_SHARE = 0.1


class Display(Protocol):
    """How a run shows itself."""

    def step(self, line: Mapping[str, Any]) -> None:
        """A step is done: the fields of its line in metrics.jsonl."""

    def say(self, text: str) -> None:
        """A line that stays."""

    def close(self) -> None:
        """Nothing more will be shown."""


def display(total: int, start: int, *, shown: bool) -> Display:
    """The display that HARNESS_PROGRESS asks for; none on ranks that are not to show anything."""
    kind = os.environ.get("HARNESS_PROGRESS", "bar" if sys.stderr.isatty() else "plain") if shown else "none"
    return {"bar": Bar, "plain": Plain}.get(kind, Nothing)(total, start)


class Nothing:
    """Shows nothing."""

    def __init__(self, total: int, start: int) -> None:
        pass

    def step(self, line: Mapping[str, Any]) -> None:
        """Nothing."""

    def say(self, text: str) -> None:
        """Nothing."""

    def close(self) -> None:
        """Nothing."""


class Bar:
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
        self._task: Any = self._progress.add_task("train", total=total, completed=start, numbers="")
        self._progress.start()

    def step(self, line: Mapping[str, Any]) -> None:
        """Move the bar."""
        numbers = f"loss {line['loss']:.3f}  {format_count(line['tokens_per_second'])} tokens/s"
        self._progress.update(self._task, completed=line["step"], numbers=numbers)

    def say(self, text: str) -> None:
        """Print above the bar."""
        self._progress.console.print(text, markup=False, highlight=False)

    def close(self) -> None:
        """Leave the bar as it stands."""
        self._progress.stop()


class Plain:
    """A line every tenth of the run, or every 10 seconds, whichever is sooner."""

    def __init__(self, total: int, start: int) -> None:
        self._total, self._start = total, start
        self._began = self._said = time.monotonic()
        self._said_step = start

    def step(self, line: Mapping[str, Any]) -> None:
        """Print when it is time to."""
        now, step = time.monotonic(), line["step"]
        due = step - self._said_step >= self._total * _PLAIN_EVERY_SHARE or now - self._said >= _PLAIN_EVERY_SECONDS
        if due or step == self._total:
            left = (now - self._began) / (step - self._start) * (self._total - step)
            speed = f"{format_count(line['tokens_per_second'])} tokens/s"
            self.say(f"step {step}/{self._total}  loss {line['loss']:.3f}  {speed}  {format_seconds(left)} left")
            self._said, self._said_step = now, step

    def say(self, text: str) -> None:
        """Print now."""
        sys.stderr.write(text + "\n")
        sys.stderr.flush()

    def close(self) -> None:
        """Nothing is open."""
