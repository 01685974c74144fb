# SPDX-License-Identifier: Apache-2.0
"""Runs checks one after the other: a JSON line each, flushed, then a table. One that fails stops no other."""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.gpu_checks.check import Check, Ending, Figures, Start, State, Task
from harness.hostinfo import machine

KEPT_OUTPUT = 4000
"""Characters of the output of a failed check."""


@dataclass(frozen=True)
class Outcome:
    """One check: `why` is empty for PASS."""

    name: str
    state: State
    seconds: float
    figures: Figures
    why: str = ""

    def to_json(self) -> str:
        """One line."""
        figures = {**self.figures, **({"why": self.why} if self.why else {})}
        body = {"check": self.name, "state": self.state, "seconds": round(self.seconds, 2), "figures": figures}
        return json.dumps(body)


class Log:
    """The lines, on stdout and in a file."""

    def __init__(self, file: Path) -> None:
        self._file = file.open("w", encoding="utf-8")

    def write_line(self, outcome: Outcome) -> None:
        """Write and flush."""
        for target in (sys.stdout, self._file):
            target.write(outcome.to_json() + "\n")
            target.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()


@dataclass(frozen=True)
class Session:
    """Everything that checks of one command share."""

    start_ranks: Callable[[Task], Ending]
    rehearse: bool
    deadline: float
    wire: str = "gloo"
    faults: Sequence[str] = ()
    """`CHECK=module:function`: broken on purpose, to see that the check fails."""

    def seconds_left(self) -> float:
        """Until the command must have ended."""
        return self.deadline - time.monotonic()


def run_checks(checks: Sequence[Check], session: Session) -> Iterator[Outcome]:
    """Each outcome as soon as it is there."""
    for check in checks:
        left, why = session.seconds_left(), _find_shortage(check, session)
        if why:
            yield Outcome(check.name, "SKIP", 0.0, {}, why)
            continue
        about = f"{check.name}: {check.about}" + ("" if session.rehearse else f" (about {check.needs:.0f} s)")
        print(f"{about}, {left:.0f} s are left", file=sys.stderr, flush=True)
        yield _run_check(check, session)


def _find_shortage(check: Check, session: Session) -> str:
    """The time or host memory that the check lacks here; empty where it has both."""
    left, available = session.seconds_left(), machine.host_memory().available / (1 << 30)
    if left < max(0.0 if session.rehearse else check.needs, 1.0):
        return f"needs {check.needs:.0f} s, {max(left, 0):.0f} s are left"
    if not session.rehearse and available < check.host_gib:
        return f"needs {check.host_gib:.0f} GiB of host memory, {available:.0f} are available"
    return ""


def _run_check(check: Check, session: Session) -> Outcome:
    began = time.monotonic()
    folder = Path(tempfile.mkdtemp(prefix=f"gpu-check-{check.name}-"))
    fault = dict(f.split("=", 1) for f in session.faults).get(check.name, "")
    seconds = min(check.limit, session.seconds_left())
    task = Task(check.name, str(folder), session.rehearse, check.ranks, "", seconds, session.wire, fault)
    figures: Figures = {}
    try:
        figures = check.drive(Start(task, session.start_ranks))
        why = "; ".join(check.judge(figures, rehearse=session.rehearse))
    except Exception as error:  # a check that fails in any way stops no other
        why = f"{type(error).__name__}: {error}"[-KEPT_OUTPUT:]
        if type(error).__name__ != "RanksFailed":
            why += "\n" + traceback.format_exc(limit=-2)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if session.rehearse and check.cannot_show:
        figures = {**figures, "cannot_show": check.cannot_show}
    return Outcome(check.name, "FAIL" if why else "PASS", time.monotonic() - began, figures, why)


def render_table(outcomes: Sequence[Outcome]) -> str:
    """State, check, seconds and a line of figures or the reason."""
    width = max(len(outcome.name) for outcome in outcomes)
    lines = []
    for outcome in outcomes:
        text = outcome.why.strip().splitlines()[-1][:400] if outcome.why else _format_figures(outcome.figures)[:150]
        lines.append(f"{outcome.state}  {outcome.name:{width}}  {outcome.seconds:6.1f} s  {text}")
    return "\n".join(lines) + "\n"


def _format_figures(figures: Figures) -> str:
    def shorten(value: Any) -> str:
        return f"{value:.4g}" if isinstance(value, float) else str(value)

    short = {k: v for k, v in figures.items() if isinstance(v, int | float | str) and "\n" not in str(v)}
    return ", ".join(f"{name} {shorten(value)}" for name, value in short.items())
