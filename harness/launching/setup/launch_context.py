# SPDX-License-Identifier: Apache-2.0
"""The observer of a launch, and the context that its stages share. Prints nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

from harness.launching.process.signals import Signals
from harness.verdicts import Verdict

if TYPE_CHECKING:
    from harness.launching.setup.prewarmed_launcher import PrewarmedLauncher


class LaunchObserver(Protocol):
    """Receives every event of a launch in order, from one thread at a time."""

    def on_ops_check(self, ops: Sequence[str]) -> None:
        """The stamp has no entry for these ops; the builder imports torch to check them."""

    def on_op_build(self, op: str, seconds: float, expected: float | None) -> None:
        """An op has been compiling for `seconds`; called repeatedly. `expected`: usual seconds; None: it was compiled
        before, and is loaded.
        """

    def on_op_built(self, op: str, seconds: float) -> None:
        """An op is ready."""

    def on_lock_removed(self, lock: Path, host: str) -> None:
        """A stale lock that blocked the build is removed. `host` is empty for this machine."""

    def on_lock_kept(self, lock: Path, host: str) -> None:
        """A lock without holder on its host is on a network file system; another machine may hold it."""

    def on_op_unloadable(self, op: str, error: str, host: str) -> None:
        """A compiled op does not load; it is removed and compiled again."""

    def on_start(self, world: int, hosts: int, log: Path) -> None:
        """The launcher has started."""

    def on_start_up(self, activity: str) -> None:
        """The ranks do this before their first step; called when that changes, with an empty text once they train."""

    def on_output(self, line: str) -> None:
        """A line of the launcher or of a rank."""

    def on_metrics(self, row: dict[str, Any]) -> None:
        """A new line of metrics.jsonl."""

    def on_stop(self, why: str, grace: float | None, waiting: bool) -> None:
        """A stop begins; with `waiting` the ranks have `grace` seconds (None: any time) to finish and save."""

    def on_kill(self, count: int) -> None:
        """This many processes are being killed."""

    def on_end(self, verdict: Verdict) -> None:
        """The ranks of one attempt have ended with this verdict."""

    def on_note(self, text: str) -> None:
        """Any other message."""


@dataclass(frozen=True, slots=True)
class LaunchContext:
    """The context of every stage of a launch: the folder of the launch scripts, the observer and the signals."""

    scripts: Path
    observer: LaunchObserver
    signals: Signals
    prewarmed_launcher: PrewarmedLauncher | None = None
    """DeepSpeed's launcher, already started, for the first attempt."""
    notify: Callable[[Literal["stall", "failure"], str], None] = lambda _event, _text: None
    """Tells the user, who may be away; returns at once."""
