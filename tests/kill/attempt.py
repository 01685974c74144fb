# SPDX-License-Identifier: Apache-2.0
"""One start of a run that is then killed: who, when, and what is true of what is left. No tests here.

Two ways to start: `harness launch` as a user does, with DeepSpeed's launcher; and forked ranks without a launcher, which
start in a second, for kills of ranks alone.
"""

# ruff: noqa: S311  (seeded on purpose)

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

from harness.checkpoints.latest import list_checkpoints, verify_with_name
from harness.launching.process.processes import find_run_processes, read_process

START_SECONDS = 900.0
GONE_SECONDS = 120.0
FORKED = ("rank", "ranks")
LAUNCHED = ("rank", "ranks", "launcher", "runner", "supervisor", "everything")
MOMENTS = ("start", "step", "save", "save")


@dataclass(frozen=True, slots=True)
class Kill:
    """Who gets SIGKILL and when: so many seconds after the ranks started (`start`), after so many steps of this start
    (`step`), or after the next checkpoint in the making that is seen from then on (`save`). Steps are counted and not
    seconds, so that a slow machine gets as far as a fast one.
    """

    target: str
    moment: str
    steps: int
    seconds: float
    forked: bool

    @staticmethod
    def draw(drawn: random.Random, *, forked: bool, target: str | None = None) -> Kill:
        target = target or drawn.choice(FORKED if forked else LAUNCHED)
        moment = drawn.choice(MOMENTS)
        longest = {"start": 1.5 if forked else 8.0, "step": 0.1, "save": 0.004}[moment]
        steps = 0 if moment == "start" else drawn.randint(1, 8)
        return Kill(target, moment, steps, drawn.uniform(0.0, longest), forked)


@dataclass(slots=True)
class Report:
    """What came of one start."""

    kill: Any
    run_dir: Path
    resumed_from: str | None = None
    code: int = 0
    completed: bool = False
    mid_save: bool = False
    steps: dict[int, str] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)
    output: str = ""
    patches: dict[str, str] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        body = asdict(self.kill) if self.kill else {"target": None}
        seen = {"resumed_from": Path(self.resumed_from).name if self.resumed_from else None, "code": self.code}
        return {**body, **seen, "mid_save": self.mid_save, "steps": len(self.steps), "completed": self.completed}


class Started(Protocol):
    """A run that goes on."""

    run_dir: Path | None
    resumed_from: str | None

    def ended(self) -> bool: ...
    def pids(self, target: str, drawn: random.Random) -> list[int]: ...
    def finish(self, seconds: float) -> tuple[int, str]: ...


class Launched:
    """`harness launch SPEC --resume auto`, in a session of its own."""

    resumed_from: str | None = None

    def __init__(self, spec: Path, resume: str) -> None:
        self._output = spec.parent / "runs"
        self._before = set(self._output.glob("killed-*"))
        self._log = spec.parent / "screen.txt"
        command = [sys.executable, "-m", "harness", "launch", str(spec), "--resume", resume]
        with self._log.open("w") as screen:
            self._process = subprocess.Popen(command, stdout=screen, stderr=subprocess.STDOUT, start_new_session=True)

    @property
    def run_dir(self) -> Path | None:
        new = set(self._output.glob("killed-*")) - self._before
        return next(iter(new)).resolve() if new else None

    def ended(self) -> bool:
        return self._process.poll() is not None

    def pids(self, target: str, drawn: random.Random) -> list[int]:
        assert self.run_dir is not None
        ranks = rank_pids(self.run_dir)
        if target == "rank":
            return [drawn.choice(ranks)] if ranks else []
        if target == "ranks":
            return ranks
        if target == "supervisor":
            return [self._process.pid]
        members = {p.pid: Path(f"/proc/{p.pid}/cmdline") for p in find_run_processes(self.run_dir, -1)}
        if target == "everything":
            return [self._process.pid, *members]
        lines = {pid: _bytes(file) for pid, file in members.items()}
        launcher = [pid for pid, line in lines.items() if b"deepspeed.launcher.launch" in line]
        if target == "launcher":
            return launcher
        return [pid for pid, line in lines.items() if b"--num_gpus" in line and pid not in launcher]

    def finish(self, seconds: float) -> tuple[int, str]:
        code = self._process.wait(seconds)
        if self.run_dir is not None:
            self.resumed_from = json.loads((self.run_dir / "launch.json").read_text())["resume"]
        return code, self._log.read_text(errors="replace")


class Forked:
    """The same run directory, its ranks forked from a process that has imported everything."""

    def __init__(self, spec: Path, make: Callable[[Path], tuple[Path, str | None]], run: Callable[..., Any]) -> None:
        self.run_dir, self.resumed_from = make(spec)
        words = ["--run", str(self.run_dir), *(["--resume", self.resumed_from] if self.resumed_from else [])]
        self._answer: dict[str, Any] = {}
        self._thread = threading.Thread(target=lambda: self._answer.update(run(*words)))
        self._thread.start()

    def ended(self) -> bool:
        return not self._thread.is_alive()

    def pids(self, target: str, drawn: random.Random) -> list[int]:
        ranks = rank_pids(self.run_dir)
        return [drawn.choice(ranks)] if ranks and target == "rank" else ranks

    def finish(self, seconds: float) -> tuple[int, str]:
        self._thread.join(seconds)
        assert not self._thread.is_alive(), "ranks are left"
        codes = self._answer["codes"]
        return next((code for code in codes if code), 0), "\n".join(self._answer["output"])


Strike = Callable[[Started, Any, random.Random], tuple[bool, bool]]
"""Waits for the moment and kills; returns whether somebody was killed, and whether a checkpoint was in the making then."""


def go(started: Started, kill: Any, drawn: random.Random, strike: Strike | None = None) -> Report:
    """Wait for the moment, kill, and look at what is left. Without a kill: to the end."""
    try:
        if kill is not None:
            sent, mid_save = (strike or _strike)(started, kill, drawn)
        else:
            sent, mid_save = False, False
        code, output = started.finish(GONE_SECONDS if sent else START_SECONDS)
    except BaseException:
        _end(started)
        raise
    run_dir = started.run_dir
    assert run_dir is not None, output
    report = Report(kill if sent else None, run_dir, started.resumed_from, code, mid_save=mid_save, output=output)
    report.wrong += _orphans(run_dir)  # waits for them: until they are gone, they still write and prune
    rows = read_rows(run_dir)
    report.steps = {int(row["step"]): float(row["loss"]).hex() for row in rows if row["type"] == "step"}
    report.patches = next((dict(row["patches"]) for row in rows if row["type"] == "run"), {})
    report.completed = any(row["type"] == "end" and row["state"] == "completed" for row in rows)
    if sent and not report.completed and code == 0:
        report.wrong.append("it was killed and ended with code 0")
    if not sent and code != 0:
        report.wrong.append(f"nobody killed it and it ended with code {code}")
    report.wrong += find_torn(run_dir)
    return report


def _strike(started: Started, kill: Kill, drawn: random.Random) -> tuple[bool, bool]:
    if not wait_until(lambda: _started(started.run_dir, kill.steps), started, START_SECONDS):
        return False, False
    assert started.run_dir is not None
    making = lambda: _in_the_making(started.run_dir)  # noqa: E731
    if kill.moment == "save" and not wait_until(making, started, START_SECONDS, every=0.0005):
        return False, False
    time.sleep(kill.seconds)
    pids = started.pids(kill.target, drawn)
    if started.ended() or not pids:
        return False, False
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    return True, _in_the_making(started.run_dir)


def wait_until(done: Callable[[], bool], started: Started, seconds: float, every: float = 0.02) -> bool:
    end = time.monotonic() + seconds
    while not done():
        if started.ended() or time.monotonic() > end:
            return done()
        time.sleep(every)
    return True


def _started(run_dir: Path | None, steps: int) -> bool:
    if run_dir is None or not rank_pids(run_dir):
        return False
    return sum(row["type"] == "step" for row in read_rows(run_dir)) >= steps


def _in_the_making(run_dir: Path | None) -> bool:
    try:
        return run_dir is not None and any(e.name.startswith(".tmp-") for e in os.scandir(run_dir / "checkpoints"))
    except OSError:
        return False


def rank_pids(run_dir: Path) -> list[int]:
    found = []
    for file in sorted((run_dir / "status").glob("rank-*.json")):
        try:
            pid = int(json.loads(file.read_text())["pid"])
        except (OSError, ValueError, KeyError):
            continue
        process = read_process(pid)
        found += [pid] if process is not None and not process.has_exited else []
    return found


def read_rows(run_dir: Path) -> list[dict[str, Any]]:
    """Whole lines; what a kill tore off is passed over."""
    try:
        lines = (run_dir / "metrics.jsonl").read_text(errors="replace").splitlines()
    except OSError:
        return []
    found = []
    for line in lines:
        try:
            found.append(dict(json.loads(line)))
        except ValueError:
            continue
    return found


def find_torn(run_dir: Path) -> list[str]:
    """Everything that has a checkpoint's name must be one, to the last byte."""
    found = [f for path in list_checkpoints(run_dir / "checkpoints") for f in verify_with_name(path)]
    return [f"a torn checkpoint has its final name: {f.message}" for f in found if f.is_error]


def _orphans(run_dir: Path) -> list[str]:
    """Processes of the run that are left; the ranks of a killed supervisor get a moment to notice."""
    end = time.monotonic() + 15.0
    while _alive(run_dir) and time.monotonic() < end:
        time.sleep(0.05)
    return [f"process {pid} is left" for pid in _alive(run_dir)]


def _alive(run_dir: Path) -> list[int]:
    return sorted({*(p.pid for p in find_run_processes(run_dir, -1)), *rank_pids(run_dir)})


def _end(started: Started) -> None:
    for pid in started.pids("everything", random.Random(0)) if started.run_dir else []:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue


def _bytes(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError:
        return b""
