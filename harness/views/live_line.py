# SPDX-License-Identifier: Apache-2.0
"""The last line of a terminal while a launch runs: what the ranks do before their first step, then the bar of training.

It is drawn again and again; other lines are printed above it. A terminal that is closed meanwhile ends no training:
what cannot be drawn is left out.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.text import Text

from harness.printed_text import escape_line, escape_unprintable, escape_workflow_commands, unguarded
from harness.progress import RunProgress, format_to_width

_BAR_WIDTH = 20
_BAR_MARGIN = 34
"""Columns of a line that the bar, the count and the gaps take."""


class LiveLine:
    """One line at a time: `show_activity`, then `show_training` and `update`, until `close`."""

    def __init__(self) -> None:
        self._console = Console(file=unguarded(sys.stderr), force_terminal=True)
        self._progress: Progress | None = None
        self._is_training = False

    def show_activity(self, text: str) -> None:
        """Ranks are starting: the text with a spinner and the time since the first of these calls."""
        text = escape_unprintable(text)
        if self._progress is None or self._is_training:
            self._open(SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn())
            self._is_training = False
            self._add_task(text, total=None)
        else:
            self._progress.update(self._progress.task_ids[0], description=text)

    def show_training(self, progress: RunProgress) -> None:
        """The run has a first step: a bar of its steps."""
        figures = TextColumn("{task.fields[figures]}", markup=False)
        self._open(TextColumn("train"), BarColumn(_BAR_WIDTH), MofNCompleteColumn(), figures)
        self._is_training = True
        self._add_task("train", total=progress.total_steps, completed=progress.start_step, figures="first step")

    def update(self, step: int, row: Mapping[str, Any], progress: RunProgress) -> None:
        """A step is done: `row` is its line of metrics.jsonl."""
        if self._progress is not None and self._is_training:
            figures = format_to_width(row, progress, self._console.width - _BAR_MARGIN)
            self._progress.update(self._progress.task_ids[0], completed=step, figures=figures)

    def print(self, text: str) -> None:
        """Print above the line."""
        with contextlib.suppress(OSError, ValueError):
            clean = escape_workflow_commands(escape_line(text, colour=True))
            self._console.print(Text.from_ansi(clean), soft_wrap=True)

    def close(self, *, keep: bool = False) -> None:
        """End it. It stays on the screen only as the bar of training, and only with `keep`: the run completed."""
        if self._progress is not None:
            self._progress.live.transient = not (keep and self._is_training)
            with contextlib.suppress(OSError, ValueError):
                self._progress.stop()
            self._progress = None

    def _open(self, *columns: Any) -> None:
        self.close()
        self._progress = Progress(*columns, console=self._console)

    def _add_task(self, text: str, **fields: Any) -> None:
        if self._progress is not None:
            self._progress.add_task(text, **fields)
            with contextlib.suppress(OSError, ValueError):
                self._progress.start()
