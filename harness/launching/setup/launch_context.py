"""What a launch tells whoever watches it, and what its stages are given to work with. Nothing here prints."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from harness.launching.process.signals import Signals
from harness.verdicts import Verdict

if TYPE_CHECKING:
    from harness.launching.setup.prewarmed_launcher import PrewarmedLauncher


class LaunchObserver(Protocol):
    """Told of everything that happens, in the order in which it happens, from one thread at a time."""

    def on_ops_check(self, ops: Sequence[str]) -> None:
        """It is not known whether these ops are compiled; torch is being asked."""

    def on_op_build(self, op: str, seconds: float, expected: float) -> None:
        """An op is being compiled since `seconds`; called again and again. `expected` is what it took elsewhere."""

    def on_op_built(self, op: str, seconds: float) -> None:
        """An op is ready."""

    def on_lock_removed(self, lock: Path, host: str) -> None:
        """A lock that nobody held was in the way of compiling and has been removed. No `host`: on this machine."""

    def on_lock_kept(self, lock: Path, host: str) -> None:
        """A lock that nobody on its host holds lies on a network file system; another machine may hold it."""

    def on_op_unloadable(self, op: str, error: str, host: str) -> None:
        """What was compiled of an op does not load; it is removed and compiled again."""

    def on_start(self, world: int, hosts: int, log: Path) -> None:
        """The launcher runs."""

    def on_output(self, line: str) -> None:
        """A line of the launcher or of a rank."""

    def on_metrics(self, row: dict[str, Any]) -> None:
        """A new line of metrics.jsonl."""

    def on_stop(self, why: str, grace: float | None, waiting: bool) -> None:
        """A stop was asked for; with `waiting` the ranks have `grace` seconds (None: any time) to finish and save."""

    def on_kill(self, count: int) -> None:
        """This many processes are being killed."""

    def on_end(self, verdict: Verdict) -> None:
        """The ranks of one attempt have ended so."""

    def on_note(self, text: str) -> None:
        """Anything else that is worth a line."""


@dataclass(frozen=True, slots=True)
class LaunchContext:
    """What every stage of a launch needs: the folder of the launch scripts, somebody to tell, and the signals."""

    scripts: Path
    observer: LaunchObserver
    signals: Signals
    prewarmed_launcher: PrewarmedLauncher | None = None
    """DeepSpeed's launcher, already started, for the first attempt."""
