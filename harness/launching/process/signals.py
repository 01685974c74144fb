# SPDX-License-Identifier: Apache-2.0
"""Signals of this process (Ctrl-C, SIGTERM, SIGHUP, SIGUSR1), recorded for the code that stops a launch. Sends none."""

from __future__ import annotations

import signal
from types import FrameType, TracebackType
from typing import Any

from harness.verdicts import describe_signal

MAX_STOP_GRACE_SECONDS = 120.0
"""The longest that a stop waits for the ranks to finish their step and save, where the spec sets no time."""


class SignalInterrupt(Exception):
    """Raised when a signal interrupts a stage; `signum` is its number."""

    def __init__(self, signum: int) -> None:
        self.signum = signum
        super().__init__(signal.Signals(signum).name)


class Signals:
    """While entered, SIGINT, SIGTERM, SIGHUP and SIGUSR1 are recorded in `received` and do nothing else.

    With SIGUSR1 a scheduler announces a pre-emption; it sends SIGKILL later.

    SIGHUP stays ignored where it was (nohup). Must be entered in the main thread.
    """

    def __init__(self) -> None:
        self.received: list[int] = []
        self._previous_handlers: dict[int, Any] = {}

    def __enter__(self) -> Signals:
        for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1):
            if signum == signal.SIGHUP and signal.getsignal(signum) == signal.SIG_IGN:
                continue
            self._previous_handlers[signum] = signal.signal(signum, self._on_signal)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for signum, handler in self._previous_handlers.items():
            signal.signal(signum, handler if handler is not None else signal.SIG_DFL)

    @property
    def first(self) -> int | None:
        """The signal that requested the stop."""
        return self.received[0] if self.received else None

    @property
    def is_repeated(self) -> bool:
        """True after a second signal: stop waiting."""
        return len(self.received) > 1

    def raise_if_received(self) -> None:
        """Raise SignalInterrupt if a signal was received."""
        if self.received:
            raise SignalInterrupt(self.received[0])

    def _on_signal(self, signum: int, _frame: FrameType | None) -> None:
        self.received.append(signum)


def signal_name(signum: int) -> str:
    """The signal's name for people."""
    return describe_signal(signal.Signals(signum).name)


def parse_signal_name(text: str) -> int | None:
    """The signal that the first word of a text names, as `signal_name` writes it; None where it names none."""
    word = (text.split() or [""])[0].rstrip(":,")
    name = "SIGINT" if word == "Ctrl-C" else word
    return int(signal.Signals[name]) if name in signal.Signals.__members__ else None
