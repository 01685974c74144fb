"""What people see on stderr while a run goes on: a bar on a terminal, plain lines elsewhere.

Draws what `harness.launching` tells; the log keeps everything that is not shown here.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from harness.launching.noise import is_noise, is_step
from harness.units import format_count, format_seconds
from harness.views.style import style_for

_REPEAT_SECONDS = 15.0
_LOADED_SECONDS = 3.0
"""An op that is compiled already is loaded in less."""


class Screen:
    """The onlooker of `harness launch`. `quiet` shows trouble only."""

    def __init__(self, *, quiet: bool = False) -> None:
        self._quiet = quiet
        self._terminal = sys.stderr.isatty() and not quiet
        self._style = style_for(sys.stderr)
        self._bar: Any = None
        self._task: Any = None
        self._said = 0.0
        self._op = ""
        self._total = 0
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

    def lock_removed(self, lock: Path) -> None:
        """Every later process would have waited for it for ever."""
        self._say(f"removed {lock}: a compilation was killed there and nobody holds it")

    def lock_kept(self, lock: Path) -> None:
        """Not ours to remove."""
        self._say(
            f"{lock} is held by nobody on this machine; if no other machine compiles there, remove it", always=True
        )

    def started(self, world: int, hosts: int, log: Path) -> None:
        """From here on the ranks have the word."""
        where = "on this machine" if hosts == 1 else f"on {hosts} hosts"
        self._say(f"starting {world} rank{'s' if world > 1 else ''} {where}; everything they print is in {log}")

    def output(self, line: str) -> None:
        """A line of a rank or of the launcher: noise stays in the log, and a bar replaces plain progress."""
        if is_noise(line):
            return
        self.last_lines.append(line)
        if not self._quiet and not (self._bar is not None and is_step(line)):
            self._print(line)

    def metrics(self, row: dict[str, Any]) -> None:
        """Moves the bar."""
        if row.get("type") == "run":
            self._total = int(row.get("steps") or 0)
            if self._terminal:
                self._open_bar(int(row.get("start_step") or 0))
        elif row.get("type") == "step" and self._bar is not None:
            speed = row.get("tokens_per_second")
            numbers = f"loss {row['loss']:.3f}" + (f"  {format_count(speed)} tokens/s" if speed else "")
            self._bar.update(self._task, completed=row["step"], numbers=numbers)
        elif row.get("type") in {"end", "stop", "restart"}:
            self.close()

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

    def note(self, text: str) -> None:
        """As it is."""
        self._say(text)

    def close(self) -> None:
        """The bar stays as it was last."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def _open_bar(self, start: int) -> None:
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            Progress,
            TextColumn,
            TimeRemainingColumn,
        )

        self._bar = Progress(
            TextColumn("train"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[numbers]}"),
            TimeRemainingColumn(),
            console=Console(stderr=True),
        )
        self._task = self._bar.add_task("train", total=self._total, completed=start, numbers="")
        self._bar.start()

    def _say(self, text: str, *, always: bool = False) -> None:
        if always or not self._quiet:
            self._print(self._style.paint("harness", "cyan") + " " + text)

    def _print(self, text: str) -> None:
        """A screen that is gone (a closed terminal, a broken pipe) must not end a training."""
        with contextlib.suppress(OSError, ValueError):
            if self._bar is not None:
                from rich.text import Text

                self._bar.console.print(Text.from_ansi(text), soft_wrap=True)
            else:
                print(text, file=sys.stderr, flush=True)
