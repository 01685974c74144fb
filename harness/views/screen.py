# SPDX-License-Identifier: Apache-2.0
"""The progress of a run on stderr: a bar on a terminal, plain lines elsewhere, JSON for programs.

Shows the events of `harness.launching`; the log has everything that is not shown here.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import sys
import time
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.text import Text

from harness.launching.supervise.log_filter import is_noise, is_progress_line, rank_of, strip_rank_prefix
from harness.printed_text import escape_line, escape_unprintable, escape_workflow_commands, unguarded
from harness.progress import RunProgress, format_plain, format_to_width, to_json_row
from harness.units import finite_number, format_seconds
from harness.verdicts import Verdict
from harness.views.style import style_for

ScreenMode = Literal["bar", "plain", "json", "quiet"]
_REPEAT_SECONDS = 15.0
_OP_LOAD_SECONDS = 3.0
"""A compiled op loads in less."""


def resolve_mode(mode: str) -> ScreenMode:
    """The mode that `auto` means: a bar on a terminal that can move its cursor, plain lines in CI and in pipes."""
    if mode in ("bar", "plain", "json", "quiet"):
        return mode  # type: ignore[return-value]
    able = sys.stderr.isatty() and os.environ.get("TERM") != "dumb" and not os.environ.get("CI")
    return "bar" if able else "plain"


class Screen:
    """The observer of `harness launch`. `quiet` shows warnings and errors only, `json` one object per
    line. Of the ranks' output it shows that of rank 0, with `tee` that of all.
    """

    def __init__(
        self, mode: ScreenMode = "plain", save_steps: int | None = None, *, save_at_end: bool = True, tee: bool = False
    ) -> None:
        self._mode, self._quiet, self._tee = mode, mode == "quiet", tee
        self._save_schedule = (save_steps, save_at_end)
        self._pace: RunProgress | None = None
        self._style = style_for(sys.stderr)
        self._live: LiveLine | None = None
        self._start_time = time.monotonic()
        self._activity = ""
        self._log: Path | str = "the log"
        self._last_build_note = 0.0
        self._current_op = ""
        self._tracebacks = TracebackBuffer()
        self.last_lines: deque[str] = deque(maxlen=40)
        """The last lines that are no noise, shown when a run failed."""

    def on_ops_check(self, ops: Sequence[str]) -> None:
        """Print the ops; the check imports torch, which takes seconds."""
        self._print_note(f"checking that these ops are compiled: {', '.join(ops)}")

    def on_op_build(self, op: str, seconds: float, expected: float | None) -> None:
        """Print progress of a build that takes longer than a load, at intervals."""
        now = time.monotonic()
        if seconds < _OP_LOAD_SECONDS or (op == self._current_op and now - self._last_build_note < _REPEAT_SECONDS):
            return
        text = f"loading {op}, which is compiled" if expected is None else f"compiling {op}"
        if op == self._current_op:
            text += f", {format_seconds(seconds)} so far"
        elif expected is not None:
            text += f", about {format_seconds(expected)} the first time"
        self._print_note(text)
        self._current_op, self._last_build_note = op, now

    def on_op_built(self, op: str, seconds: float) -> None:
        """Print the time of a build."""
        self._print_note(f"compiled {op} in {format_seconds(seconds)}")

    def on_lock_removed(self, lock: Path, host: str) -> None:
        """Print that a stale lock was removed: later processes would wait for it forever."""
        self._print_note(
            f"removed {lock}{_format_host_suffix(host)}: a compilation was killed there and no process holds it"
        )

    def on_lock_kept(self, lock: Path, host: str) -> None:
        """Print that a lock was kept: a process of another machine may hold it."""
        nobody = f"no process on {host or 'this machine'}"
        self._print_note(f"{lock} is held by {nobody}; if no other machine compiles there, remove it", always=True)

    def on_op_unloadable(self, op: str, error: str, host: str) -> None:
        """Print that an op does not load: a truncated library, or one of another system."""
        self._print_note(f"the compiled {op}{_format_host_suffix(host)} does not load ({error}); compiling it again")

    def on_start(self, world: int, hosts: int, log: Path) -> None:
        """Print the number of ranks and the folder of their logs."""
        where = "on this machine" if hosts == 1 else f"on {hosts} hosts"
        ranks = f"{world} ranks {where}; their output is in" if world > 1 else f"1 rank {where}; its output is in"
        self._start_time, self._activity, self._log = time.monotonic(), "", log
        self._print_note(f"starting {ranks} {log.parent}")

    def on_start_up(self, activity: str) -> None:
        """Show what the ranks do: in the live line, or a line for each change, with the time since the start."""
        seconds = time.monotonic() - self._start_time
        if self._mode == "json":
            self._print_json({"type": "start_up", "activity": activity, "seconds": round(seconds, 1)})
        elif self._mode == "bar":
            if activity and self._pace is None:
                self._open_live_line().show_activity(f"ranks are {activity}")
        elif activity and activity.partition(" (")[0] != self._activity:  # a line for each activity, not for each rank
            self._activity = activity.partition(" (")[0]
            after = f", {format_seconds(seconds)} after the start" if seconds >= 1 else ""
            self._print_note(f"ranks are {activity}{after}")

    def on_output(self, line: str) -> None:
        """A line of a rank or of the launcher: noise stays in the log, and a bar replaces plain progress."""
        if is_noise(line):
            return
        line = self._clean(line)
        self.last_lines.append(line)
        if self._mode != "json" and not self._tee and self._tracebacks.feed(line):
            return
        if rank_of(line) and not self._tee:
            return
        if self._mode == "json":
            self._print_json({"type": "output", "text": line})
        elif not self._quiet and not (self._pace is not None and is_progress_line(line)):
            self._print(line)

    def on_metrics(self, row: dict[str, Any]) -> None:
        """Update the bar, or print a line."""
        kind = row.get("type")
        if kind == "run":
            start = int(finite_number(row.get("start_step")) or 0)
            self._pace = RunProgress(int(finite_number(row.get("steps")) or 0), start, *self._save_schedule)
            if self._mode == "bar":
                self._open_live_line().show_training(self._pace)
        elif kind == "step" and self._pace is not None:
            self._update_progress(row, self._pace)
        elif kind in {"end", "stop", "restart"}:
            self._close_live_line(keep=row.get("state") == "completed")
        if self._mode == "json" and (kind != "step" or self._pace is None):
            self._print_json(row)

    def _update_progress(self, row: dict[str, Any], pace: RunProgress) -> None:
        step = int(finite_number(row.get("step")) or 0)
        self._print_lines(self._tracebacks.pop_lines(0))
        if self._mode == "json":
            self._print_json(to_json_row(row, pace))
        elif self._live is not None:
            self._live.update(step, row, pace)
        elif self._mode == "plain" and pace.should_log(step):
            self._print(format_plain(row, pace))

    def on_stop(self, why: str, grace: float | None, waiting: bool) -> None:
        """Print what a stop waits for."""
        if waiting:
            may = "the ranks finish" if grace is None else f"the ranks have {format_seconds(grace)} to finish"
            key = "" if grace is None else "`launch.stop_grace_seconds`; "
            text = f"stopping after {why}: {may} their step and save ({key}a second signal kills them)"
        else:
            text = f"stopping after {why}: no rank is training yet"
        self._print_note(text, always=True)

    def on_kill(self, count: int) -> None:
        """Print the number of processes that are killed."""
        self._print_note(f"killing {count} process{'es' if count > 1 else ''} of the run")

    def on_end(self, verdict: Verdict) -> None:
        """Print the traceback of the rank that failed first; those of ranks that lost that one stay in the log. The
        bar of the attempt goes, and the next attempt has its own.
        """
        self._close_live_line(keep=verdict.state == "completed")
        self._pace = None
        lines, others = self._tracebacks.pop_for_verdict(verdict)
        shown = shorten_traceback(lines)
        self._print_lines(shown)
        if len(shown) < len(lines):
            self._print_note(f"{len(lines) - len(shown)} more lines of this are in {self._log}")
        if verdict.state == "failed" and verdict.rank is not None and not (verdict.crashed or verdict.refused):
            self.last_lines.clear()
        if others and verdict.state == "failed":
            who = f"rank {others[0]}" if len(others) == 1 else f"{len(others)} other ranks"
            self._print_note(f"{who} failed after that; {'its' if len(others) == 1 else 'their'} output is in the log")

    def _clean(self, line: str) -> str:
        """A rank's line as a terminal would show it: the last state of a bar, colours, and no other control."""
        if self._mode == "json":
            return line
        return escape_line(line.rstrip("\r").rpartition("\r")[2], colour=self._style.colour)

    def _print_lines(self, lines: Sequence[str]) -> None:
        for line in lines if not self._quiet else ():
            self._print(line)

    def on_note(self, text: str) -> None:
        """Print a note."""
        self._print_note(text)

    def close(self) -> None:
        """End the live line."""
        self._close_live_line()

    def _open_live_line(self) -> LiveLine:
        if self._live is None:
            self._live = LiveLine()
        return self._live

    def _close_live_line(self, *, keep: bool = False) -> None:
        if self._live is not None:
            self._live.close(keep=keep)
            self._live = None

    def _print_note(self, text: str, *, always: bool = False) -> None:
        """Print a note with control characters escaped: it may quote another user's file, or another host."""
        if self._mode == "json":
            self._print_json({"type": "note", "text": text})
        elif always or not self._quiet:
            self._print(self._style.paint("harness", "cyan") + " " + escape_unprintable(text, keep="\n"))

    def _print_json(self, body: dict[str, Any]) -> None:
        self._print(json.dumps({"time": round(time.time(), 3), **body}))

    def _print(self, text: str) -> None:
        """Print; a closed terminal or a broken pipe must not end a training."""
        with contextlib.suppress(OSError, ValueError):
            if self._live is not None:
                self._live.print(text)
            else:
                print(text, file=sys.stderr, flush=True)


def _format_host_suffix(host: str) -> str:
    return f" on {host}" if host else ""


# The last line of a terminal while a launch runs: what the ranks do before their first step, then the bar of training.
#
# It is drawn again and again; other lines are printed above it. A terminal that is closed meanwhile ends no training:
# what cannot be drawn is left out.


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


# Tracebacks of ranks, kept from the screen until the rank that failed first is known, and shortened for it.
#
# A rank that lost a peer prints a long traceback before the supervisor knows that the peer was killed. Prints nothing.


_FIRST_LINE = "Traceback (most recent call last):"
_MAX_LINES = 200
"""Kept of a rank's first lines and of its last: a caught traceback may come long before the fatal one."""
_FRAME = re.compile(r'^\s+File "([^"]+)", line \d+')
_LIBRARY = re.compile(r"/(?:site|dist)-packages/|/lib/python3|/harness/(?:runtime|workers|patches)/|<frozen |<string>")
_MAX_SHOWN = 20


def shorten_traceback(lines: Sequence[str]) -> list[str]:
    """The lines without frames of libraries and of the harness, but for the last frame of each traceback, which raised;
    at most the last 20.
    """
    kept: list[str] = []
    frame: list[str] = []
    for line in [*lines, ""]:
        text = strip_rank_prefix(line)
        if _FRAME.match(text):
            kept += frame if frame and not _is_of_library(frame) else []
            frame = [line]
        elif frame and text.startswith("    "):
            frame.append(line)
        else:
            kept += frame  # the last of its traceback
            frame = []
            kept.append(line)
    return kept[:-1][-_MAX_SHOWN:]


def _is_of_library(frame: Sequence[str]) -> bool:
    match = _FRAME.match(strip_rank_prefix(frame[0]))
    return bool(match and _LIBRARY.search(match[1]))


class TracebackBuffer:
    """The lines of each rank from the beginning of its traceback on."""

    def __init__(self) -> None:
        self._by_rank: dict[int, tuple[list[str], deque[str]]] = {}

    def feed(self, line: str) -> bool:
        """Keep a line of a traceback; False for any other line."""
        rank = rank_of(line)
        if rank not in self._by_rank and not strip_rank_prefix(line).startswith(_FIRST_LINE):
            return False
        first, last = self._by_rank.setdefault(rank, ([], deque(maxlen=_MAX_LINES)))
        (first if len(first) < _MAX_LINES else last).append(line)
        return True

    def pop_lines(self, rank: int) -> list[str]:
        """The kept lines of a rank that continued to train."""
        first, last = self._by_rank.pop(rank, ([], ()))
        return [*first, *last]

    def pop_for_verdict(self, verdict: Verdict) -> tuple[list[str], list[int]]:
        """(the traceback that explains the end, the other ranks with tracebacks); none are kept after that. Where no
        rank is named, it is that of rank 0, which is shown during a run.
        """
        whose = 0 if verdict.rank is None else verdict.rank if verdict.crashed or verdict.refused else None
        lines = [] if whose is None else self.pop_lines(whose)
        others = sorted(self._by_rank)
        self._by_rank.clear()
        return lines, others
