"""What people see on stderr while a run goes on: a bar on a terminal, plain lines elsewhere, JSON for programs.

Draws what `harness.launching` tells; the log keeps everything that is not shown here.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from harness.launching.noise import is_noise, is_step, rank_of
from harness.progress import Pace, fitting, for_programs, number, plain
from harness.units import format_seconds
from harness.verdicts import Verdict
from harness.views.style import printable, style_for
from harness.views.tracebacks import Tracebacks

Mode = Literal["bar", "plain", "json", "quiet"]
_REPEAT_SECONDS = 15.0
_LOADED_SECONDS = 3.0
"""An op that is compiled already is loaded in less."""
_BAR_WIDTH = 20
_BESIDE_BAR = 34
"""Columns of a line that the bar, the count and the gaps take."""


def mode_of(asked: str) -> Mode:
    """What `auto` means: a bar where stderr is a terminal that can move its cursor, plain lines in CI and in pipes."""
    if asked in ("bar", "plain", "json", "quiet"):
        return asked  # type: ignore[return-value]
    able = sys.stderr.isatty() and os.environ.get("TERM") != "dumb" and not os.environ.get("CI")
    return "bar" if able else "plain"


class Screen:
    """The onlooker of `harness launch`. `quiet` shows trouble only, `json` one object a line; of the ranks' output what
    rank 0 prints is shown, with `tee` that of all.
    """

    def __init__(
        self, mode: Mode = "plain", save_steps: int | None = None, *, save_at_end: bool = True, tee: bool = False
    ) -> None:
        self._mode, self._quiet, self._tee = mode, mode == "quiet", tee
        self._saves = (save_steps, save_at_end)
        self._pace: Pace | None = None
        self._style = style_for(sys.stderr)
        self._bar: Any = None
        self._task: Any = None
        self._said = 0.0
        self._op = ""
        self._tracebacks = Tracebacks()
        self.last_lines: deque[str] = deque(maxlen=40)
        """The last lines that are no noise, for whoever has to say why a run failed."""

    def checking(self, ops: Sequence[str]) -> None:
        """Torch is imported for it, which takes seconds."""
        self._say(f"checking that these ops are compiled: {', '.join(ops)}")

    def compiling(self, op: str, seconds: float, expected: float) -> None:
        """Said once it is clear that it takes time, and then now and again."""
        now = time.monotonic()
        if seconds < _LOADED_SECONDS or (op == self._op and now - self._said < _REPEAT_SECONDS):
            return
        about = f"about {format_seconds(expected)} the first time"
        self._say(f"compiling {op}, {about}" if op != self._op else f"compiling {op}, {format_seconds(seconds)} so far")
        self._op, self._said = op, now

    def compiled(self, op: str, seconds: float) -> None:
        """The end of that."""
        self._say(f"compiled {op} in {format_seconds(seconds)}")

    def lock_removed(self, lock: Path, host: str) -> None:
        """Every later process would have waited for it for ever."""
        self._say(f"removed {lock}{_on(host)}: a compilation was killed there and nobody holds it")

    def lock_kept(self, lock: Path, host: str) -> None:
        """Not ours to remove."""
        nobody = f"nobody on {host or 'this machine'}"
        self._say(f"{lock} is held by {nobody}; if no other machine compiles there, remove it", always=True)

    def unloadable(self, op: str, error: str, host: str) -> None:
        """Half of a compilation, or another system's."""
        self._say(f"{op} as it was compiled{_on(host)} does not load ({error}); compiling it again")

    def started(self, world: int, hosts: int, log: Path) -> None:
        """From here on the ranks have the word."""
        where = "on this machine" if hosts == 1 else f"on {hosts} hosts"
        ranks = (
            f"{world} ranks {where}; what each prints is in" if world > 1 else f"1 rank {where}; what it prints is in"
        )
        self._say(f"starting {ranks} {log.parent}")

    def output(self, line: str) -> None:
        """A line of a rank or of the launcher: noise stays in the log, and a bar replaces plain progress."""
        if is_noise(line):
            return
        self.last_lines.append(line)
        if self._mode != "json" and not self._tee and self._tracebacks.take(line):
            return
        if rank_of(line) and not self._tee:
            return
        if self._mode == "json":
            self._object({"type": "output", "text": line})
        elif not self._quiet and not (self._pace is not None and is_step(line)):
            self._print(line)

    def metrics(self, row: dict[str, Any]) -> None:
        """Moves the bar, or makes a line."""
        kind = row.get("type")
        if kind == "run":
            start = int(number(row.get("start_step")) or 0)
            self._pace = Pace(int(number(row.get("steps")) or 0), start, *self._saves)
            if self._mode == "bar":
                self._open_bar(self._pace)
        elif kind == "step" and self._pace is not None:
            self._step(row, self._pace)
        elif kind in {"end", "stop", "restart"}:
            self.close()
        if self._mode == "json" and (kind != "step" or self._pace is None):
            self._object(row)

    def _step(self, row: dict[str, Any], pace: Pace) -> None:
        step = int(number(row.get("step")) or 0)
        self._show(self._tracebacks.outlived(0))
        if self._mode == "json":
            self._object(for_programs(row, pace))
        elif self._bar is not None:
            numbers = fitting(row, pace, self._bar.console.width - _BESIDE_BAR)
            self._bar.update(self._task, completed=step, numbers=numbers)
        elif self._mode == "plain" and pace.due(step):
            self._print(plain(row, pace))

    def stopping(self, why: str, grace: float | None, waiting: bool) -> None:
        """What happens now, and how to have it quicker."""
        if waiting:
            may = "the ranks finish" if grace is None else f"the ranks have {format_seconds(grace)} to finish"
            text = f"stopping after {why}: {may} their step and save (again: kill now)"
        else:
            text = f"stopping after {why}: no rank is training yet"
        self._say(text, always=True)

    def killing(self, count: int) -> None:
        """Not gone by themselves."""
        self._say(f"ending {count} process{'es' if count > 1 else ''} of the run")

    def ended(self, verdict: Verdict) -> None:
        """Now it is known whose traceback tells why; those of ranks that lost that one stay in the log."""
        lines, others = self._tracebacks.explaining(verdict)
        self._show(lines)
        if verdict.state == "failed" and verdict.rank is not None and not (verdict.crashed or verdict.refused):
            self.last_lines.clear()
        if others and verdict.state == "failed":
            who = f"rank {others[0]}" if len(others) == 1 else f"{len(others)} other ranks"
            self._say(f"{who} failed after that; what {'it' if len(others) == 1 else 'they'} printed is in the log")

    def _show(self, lines: Sequence[str]) -> None:
        for line in lines if not self._quiet else ():
            self._print(line)

    def note(self, text: str) -> None:
        """As it is, but for control characters: it may name what somebody else's checkpoint says."""
        self._say(printable(text, keep="\n"))

    def close(self) -> None:
        """The bar stays as it was last."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def _open_bar(self, pace: Pace) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

        self.close()
        self._bar = Progress(
            TextColumn("train"),
            BarColumn(_BAR_WIDTH),
            MofNCompleteColumn(),
            TextColumn("{task.fields[numbers]}", markup=False),
            console=Console(stderr=True, force_terminal=True),
        )
        self._task = self._bar.add_task("train", total=pace.total, completed=pace.start, numbers="")
        self._bar.start()

    def _say(self, text: str, *, always: bool = False) -> None:
        if self._mode == "json":
            self._object({"type": "note", "text": text})
        elif always or not self._quiet:
            self._print(self._style.paint("harness", "cyan") + " " + text)

    def _object(self, body: dict[str, Any]) -> None:
        self._print(json.dumps({"time": round(time.time(), 3), **body}))

    def _print(self, text: str) -> None:
        """A screen that is gone (a closed terminal, a broken pipe) must not end a training."""
        with contextlib.suppress(OSError, ValueError):
            if self._bar is not None:
                from rich.text import Text

                self._bar.console.print(Text.from_ansi(text), soft_wrap=True)
            else:
                print(text, file=sys.stderr, flush=True)


def _on(host: str) -> str:
    return f" on {host}" if host else ""
