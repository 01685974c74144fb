"""What a launch tells whoever watches it, and what its stages are given to work with. Nothing here prints."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from harness.launching.signals import Signals
from harness.verdicts import Verdict

if TYPE_CHECKING:
    from harness.launching.ahead import Ahead


class Onlooker(Protocol):
    """Told of everything that happens, in the order in which it happens, from one thread at a time."""

    def checking(self, ops: Sequence[str]) -> None:
        """It is not known whether these ops are compiled; torch is being asked."""

    def compiling(self, op: str, seconds: float, expected: float) -> None:
        """An op is being compiled since `seconds`; called again and again. `expected` is what it took elsewhere."""

    def compiled(self, op: str, seconds: float) -> None:
        """An op is ready."""

    def lock_removed(self, lock: Path, host: str) -> None:
        """A lock that nobody held was in the way of compiling and has been removed. No `host`: on this machine."""

    def lock_kept(self, lock: Path, host: str) -> None:
        """A lock that nobody on its host holds lies on a network file system; another machine may hold it."""

    def unloadable(self, op: str, error: str, host: str) -> None:
        """What was compiled of an op does not load; it is removed and compiled again."""

    def started(self, world: int, hosts: int, log: Path) -> None:
        """The launcher runs."""

    def output(self, line: str) -> None:
        """A line of the launcher or of a rank."""

    def metrics(self, row: dict[str, Any]) -> None:
        """A new line of metrics.jsonl."""

    def stopping(self, why: str, grace: float | None, waiting: bool) -> None:
        """A stop was asked for; with `waiting` the ranks have `grace` seconds (None: any time) to finish and save."""

    def killing(self, count: int) -> None:
        """This many processes are being killed."""

    def ended(self, verdict: Verdict) -> None:
        """The ranks of one attempt have ended so."""

    def note(self, text: str) -> None:
        """Anything else that is worth a line."""


@dataclass(frozen=True, slots=True)
class Services:
    """What every stage of a launch needs: the folder of the launch scripts, somebody to tell, and the signals."""

    scripts: Path
    onlooker: Onlooker
    signals: Signals
    ahead: Ahead | None = None
    """DeepSpeed's launcher, already started, for the first attempt."""
