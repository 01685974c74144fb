"""Starts the launcher, watches over it and its ranks, and ends them all when asked to or when something broke.

Judges nothing: `harness.launching.verdict` says how the run ended.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
import time
from pathlib import Path
from queue import Empty, SimpleQueue

from harness.launching.onlooker import Onlooker
from harness.launching.plan import LaunchPlan
from harness.launching.processes import Process, die_with_parent, end_all, of_run, read_process, send
from harness.launching.signals import Signals, name_of
from harness.launching.verdict import Death, Status, read_statuses

_TICK = 0.1
_LOOK_EVERY = 0.5
_LEAVE_SECONDS = 4.0
"""How long the launcher may take to notice that its ranks are done; it looks once a second."""
_HANG_SECONDS = 60.0
"""How long processes may take to exit once every rank has said its last word. Freeing the memory of a large model takes
seconds; a minute means that one hangs in a library's exit handler, where nothing is left to be won by waiting."""
_REMOTE_SECONDS = 5.0
"""How long DeepSpeed's own handler may take to send `pkill` to the other hosts."""


class Watch:
    """One launch from start to end. Use: `start`, `until_end`, then read `code`, `deaths` and `statuses`."""

    def __init__(self, plan: LaunchPlan, grace: float, onlooker: Onlooker, signals: Signals) -> None:
        self.plan, self.grace, self.onlooker, self.signals = plan, grace, onlooker, signals
        self.statuses: dict[int, Status] = {}
        self.deaths: list[Death] = []
        self.survivors: list[Process] = []
        self.killed = False
        """Whether a rank that had not said its last word had to be killed."""
        self.code = 0
        self._lines: SimpleQueue[str] = SimpleQueue()
        self._metrics = Tail(plan.run_dir / "metrics.jsonl")
        self._looked = 0.0
        self._all_final_at: float | None = None

    def start(self) -> None:
        """Start the launcher in a session of its own, so that Ctrl-C in the terminal reaches the harness alone."""
        log = self.plan.run_dir / "logs" / "launcher.log"
        self._child = subprocess.Popen(  # noqa: S603
            self.plan.argv,
            cwd=self.plan.folder,
            env=self.plan.environment(os.environ),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=die_with_parent,  # noqa: PLW1509  (no thread runs yet; only prctl is called)
        )
        self._reader = threading.Thread(target=self._read, args=(log,), daemon=True, name="launcher-output")
        self._reader.start()
        self.onlooker.started(self.plan.world, len(self.plan.hosts), log)

    def until_end(self) -> None:
        """Return when the launcher has ended and none of its processes is left on this machine."""
        while self._child.poll() is None:
            if self.signals.received:
                self._stop()
                break
            self._look()
            if self._hangs_at_exit():
                self.onlooker.note(f"every rank is done and something has not exited for {_HANG_SECONDS:.0f} s")
                break
            time.sleep(_TICK)
        self._look(now=True)
        self.end()

    def end(self) -> None:
        """Whatever is left of the run on this machine is ended, and what it had still to say is passed on."""
        left = self._living()
        if left and self._child.poll() is None and not self.plan.local:
            send([p for p in left if p.pid == self._child.pid], signal.SIGTERM)
            self._wait_child(_REMOTE_SECONDS)
            left = self._living()
        if left:
            if not self._all_final():
                self.killed = True
                self.onlooker.killing(len(left))
            self.survivors = end_all(self._living, 0.4)
        self.code = self._child.wait()
        self._reader.join(2.0)
        self._look(now=True)

    def _stop(self) -> None:
        """Ask the ranks to stop and wait for them; not when none trains yet, nor any longer after a second signal."""
        signum = self.signals.received[0]
        self.statuses = read_statuses(self.plan.run_dir)
        waiting = any(s.state == "running" for s in self.statuses.values())
        (self.plan.run_dir / "stop").write_text(f"{name_of(signum)}\n", encoding="utf-8")
        self.onlooker.stopping(name_of(signum), self.grace, waiting)
        end = time.monotonic() + (self.grace if waiting else 0.0)
        while time.monotonic() < end and not self.signals.insisted and self._child.poll() is None:
            self._look(now=True)
            if self._all_final():
                self._wait_child(min(_LEAVE_SECONDS, max(1.0, end - time.monotonic())))
                return
            time.sleep(_TICK)

    def _all_final(self) -> bool:
        return len(self.statuses) == self.plan.world and all(s.final for s in self.statuses.values())

    def _hangs_at_exit(self) -> bool:
        """Whether the launcher is still there long after all its ranks said their last word."""
        if not self._all_final():
            return False
        if self._all_final_at is None:
            self._all_final_at = time.monotonic()
        return time.monotonic() - self._all_final_at > _HANG_SECONDS

    def _wait_child(self, seconds: float) -> None:
        """Until the launcher has ended, the seconds are over or a second signal came."""
        end = time.monotonic() + seconds
        while time.monotonic() < end and self._child.poll() is None and not self.signals.insisted:
            self._look()
            time.sleep(_TICK)

    def _look(self, *, now: bool = False) -> None:
        """Pass on lines and metrics; twice a second read what the ranks say, and each time see whether one is gone."""
        self._pass_on()
        if now or time.monotonic() - self._looked >= _LOOK_EVERY:
            self.statuses = {**self.statuses, **read_statuses(self.plan.run_dir)}
            self._looked = time.monotonic()
        if self.plan.local:
            self._find_deaths()

    def _find_deaths(self) -> None:
        known = {d.rank for d in self.deaths}
        for status in self.statuses.values():
            if status.final or status.rank in known or not status.pid:
                continue
            process = read_process(status.pid)
            if process is None or process.gone:
                self.deaths.append(
                    Death(status.rank, status.pid, time.time(), process.exit_signal if process else None)
                )

    def _pass_on(self) -> None:
        for row in self._metrics.rows():
            self.onlooker.metrics(row)
        while True:
            try:
                self.onlooker.output(self._lines.get_nowait())
            except Empty:
                return

    def _living(self) -> list[Process]:
        return of_run(self.plan.run_dir, self._child.pid)

    def _read(self, log: Path) -> None:
        """Everything into the log, whole lines to the queue; goes on reading when the log cannot be written."""
        pipe = self._child.stdout
        if pipe is None:
            return
        rest = b""
        with log.open("ab", buffering=0) as file:
            writes = True
            while chunk := os.read(pipe.fileno(), 65536):
                try:
                    if writes:
                        file.write(chunk)
                except OSError as error:
                    writes = False
                    self._lines.put(f"the log cannot be written any more: {error.strerror}")
                *lines, rest = (rest + chunk).split(b"\n")
                for line in lines:
                    self._lines.put(line.decode("utf-8", "replace"))
        if rest:
            self._lines.put(rest.decode("utf-8", "replace"))


class Tail:
    """The lines that are added to a JSON-lines file while somebody else writes it."""

    def __init__(self, path: Path) -> None:
        self._path, self._position, self._rest = path, 0, b""

    def rows(self) -> list[dict[str, object]]:
        """New complete lines; what is no JSON object is passed over."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._position)
                chunk = file.read()
        except OSError:
            return []
        self._position += len(chunk)
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        found = []
        for line in lines:
            try:
                row = json.loads(line)
            except ValueError:
                continue
            if isinstance(row, dict):
                found.append(row)
        return found
