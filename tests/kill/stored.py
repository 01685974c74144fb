# SPDX-License-Identifier: Apache-2.0
"""Chains of runs of which only an object store is left: ranks are killed and their disk goes, or the store fails and then
the ranks are killed; each start resumes from the store alone. Forked ranks, and a real S3 server in this process. No
tests here.
"""

# ruff: noqa: S311  (seeded on purpose)

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness.checkpoints.latest import list_checkpoints
from harness.launching.hosts.local_host import find_free_port
from harness.launching.process import shm
from tests.support.object_store import Environ, Response, StoreServer, error

from .attempt import START_SECONDS, Report, Started, go, read_rows, wait_until
from .chain import SAME, Plan, fork, run_reference
from .spec import write_spec

BUCKET = "bucket"
FAULTS = ("store killed", "store 500s", "store cuts", "store slow")
RANKS = ("rank", "ranks")
MOMENTS = ("upload", "upload", "download", "step")
STEPS_SECONDS = 60.0
"""How long a run may take for its next steps while the store fails: training must not wait for it."""


@dataclass(frozen=True, slots=True)
class StoreKill:
    """What fails, and at which request of this start (the `number`-th PUT of an `upload`, or GET of a `download`) or
    after which step. A store fails for `seconds`; all ranks are killed once `steps` more are trained.
    """

    target: str
    moment: str
    number: int
    seconds: float = 0.0
    steps: int = 0

    @staticmethod
    def draw(drawn: random.Random, target: str, moment: str | None = None) -> StoreKill:
        is_fault = target in FAULTS
        moment = moment or drawn.choice([m for m in MOMENTS if m != "step" or not is_fault])
        number = drawn.randint(1, {"upload": 24, "download": 6, "step": 12}[moment])
        return StoreKill(target, moment, number, drawn.uniform(0.3, 3.0) if is_fault else 0.0, drawn.randint(1, 10))


def draw(count: int, seed: int) -> list[StoreKill]:
    """So many kills, of each kind as many, in an order of the seed."""
    drawn = random.Random(seed)
    kinds = (*FAULTS, *RANKS, *RANKS)
    kills = [StoreKill.draw(drawn, kinds[i % len(kinds)]) for i in range(count)]
    drawn.shuffle(kills)
    return kills


@dataclass
class StoreWatch:
    """Counts the requests for checkpoints below a prefix, and lets something happen at one of them."""

    server: StoreServer
    prefix: str = ""
    method: str = ""
    number: int = 0
    act: Callable[[], bool] | None = None
    """Returns False where it must wait for the next request."""
    has_acted: threading.Event = field(default_factory=threading.Event)
    fault: Callable[[Environ], Response | None] | None = None
    _count: int = 0
    _thread: threading.Thread | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def expect(self, method: str, number: int, act: Callable[[], bool]) -> None:
        """From now on `act` is called at the `number`-th request of this method."""
        with self._lock:
            self._count, self.method, self.number, self.act = 0, method, number, act
            self.has_acted = threading.Event()
        self.server.faults.answer = self._answer

    def _answer(self, environ: Environ) -> Response | None:
        if environ["REQUEST_METHOD"] == self.method and f"/{BUCKET}/{self.prefix}/step-" in environ["PATH_INFO"]:
            with self._lock:
                self._count += 1
                is_due = self._count >= self.number and self.act is not None and not self.has_acted.is_set()
                if is_due and self.act is not None and self.act():
                    self.has_acted.set()
        return self.fault(environ) if self.fault is not None else None

    def fail(self, kind: str, seconds: float) -> None:
        """The store fails in this way for so long, and is as before then; returns at once."""

        def cut(_: Environ) -> Response | None:
            raise ConnectionResetError("the connection is cut")

        def slow(_: Environ) -> Response | None:
            time.sleep(1.5)
            return None

        def whole() -> None:
            if kind == "store killed":
                self.server.stop()
            time.sleep(seconds)
            if kind == "store killed":
                self.server.start()
            self.fault = None

        answers = {"store 500s": lambda _: error(500, "InternalError"), "store slow": slow}
        self.fault = answers.get(kind, cut)
        self._thread = threading.Thread(target=whole)
        self._thread.start()

    def reset(self) -> None:
        """Wait until the store is as before, and watch nothing."""
        if self._thread is not None:
            self._thread.join()
        self.fault = self.server.faults.answer = None


@contextmanager
def reached_by_ranks(server: StoreServer) -> Iterator[None]:
    """While entered, this process and its children reach the server as `s3://bucket`."""
    before = dict(os.environ)
    os.environ.update(server.environment())
    os.environ.pop("AWS_PROFILE", None)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def stored_steps(server: StoreServer, prefix: str) -> tuple[list[int], list[str]]:
    """The steps below a prefix that have a manifest, the newest first, and what is wrong with any of them: each of its
    files must be there with its sha256.
    """
    keys, wrong, steps = set(server.keys(BUCKET, f"{prefix}/")), list[str](), list[int]()
    for key in sorted(key for key in keys if key.endswith("/manifest.json")):
        folder = key.rpartition("/")[0]
        steps.append(int(folder.rpartition("-")[2]))
        for name, record in json.loads(_read(server, key))["files"].items():
            path = f"{folder}/{name}"
            if path not in keys or hashlib.sha256(_read(server, path)).hexdigest() != record["sha256"]:
                wrong.append(f"a torn checkpoint has a manifest in the store: {path}")
    return sorted(steps, reverse=True), wrong


def _read(server: StoreServer, key: str) -> bytes:
    return bytes(server.client.get_object(Bucket=BUCKET, Key=key)["Body"].read())


def is_uploading(server: StoreServer, prefix: str) -> bool:
    """Whether a step has its first key and no manifest."""
    names = {tuple(key.rpartition("/")[::2]) for key in server.keys(BUCKET, f"{prefix}/")}
    return any(name == "files.json" and (folder, "manifest.json") not in names for folder, name in names)


@dataclass(slots=True)
class StoreChain:
    """One training: starts and kills until it is over. Kills that came to be are taken off the list given to `run`."""

    plan: Plan
    case: str
    folder: Path
    reference: Report
    ranks: Any
    watch: StoreWatch
    tell: Callable[[str], None]
    reports: list[Report] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    prefix: str = ""

    def run(self, left: list[StoreKill]) -> None:
        spec = write_spec(self.folder, steps=self.plan.steps, case=self.case, port=self.plan.port)
        drawn = random.Random(f"{self.plan.seed} {self.folder.name}")
        newest: int | None = None
        while True:
            if newest is None:  # a prefix that an earlier run began belongs to that run
                self.prefix = f"{self.folder.name}-{len(self.reports)}"
            kill = left[0] if left else None
            if kill is not None and kill.moment == "download" and newest is None:
                kill = StoreKill(kill.target, "upload", kill.number, kill.seconds, kill.steps)
            report = self._start(spec, kill, newest, drawn)
            if report.kill is not None:
                left.pop(0)
            if report.completed:
                break
            if report.kill is None:
                raise RuntimeError(f"it ended by itself: {report.output[-3000:]}")
            steps, torn = stored_steps(self.watch.server, self.prefix)
            self.wrong += [f"{self.folder.name} start {len(self.reports)}: {text}" for text in torn]
            newest = steps[0] if steps else None
            shutil.rmtree(report.run_dir)  # the disk of the host is gone
        self._check_end()

    def _start(self, spec: Path, kill: StoreKill | None, newest: int | None, drawn: random.Random) -> Report:
        url = f"s3://{BUCKET}/{self.prefix}"
        self.watch.prefix = self.prefix
        url_of_store = f"checkpoint.upload_to={url}"
        started = fork(spec, self.ranks, self.case, url_of_store, resume=url if newest is not None else "never")
        report = go(started, kill, drawn, self._strike)
        self.watch.reset()
        found = list(report.wrong)
        resumed = int(report.resumed_from.rpartition("-")[2]) if report.resumed_from else None
        if resumed != newest:
            found.append(f"it resumed from {resumed}, the newest complete one in the store is {newest}")
        for step, loss in report.steps.items():
            if loss != self.reference.steps.get(step):
                found.append(f"loss of step {step} is {loss}, should be {self.reference.steps.get(step)}")
        first = min(report.steps, default=None)
        if first is not None and first != (newest or 0) + 1:
            found.append(f"its first step is {first}, it resumed from {newest}")
        self.reports.append(report)
        self.wrong += [f"{self.folder.name} start {len(self.reports)}: {text}" for text in found]
        self.tell(f"{self.folder.name} {len(self.reports)}: {report.to_json()}")
        return report

    def _strike(self, started: Started, kill: StoreKill, drawn: random.Random) -> tuple[bool, bool]:
        """(whether it came to be, whether a checkpoint was being uploaded then)."""
        is_fault = kill.target in FAULTS

        def act() -> bool:
            pids = started.pids(kill.target if not is_fault else "ranks", drawn)
            if not pids:
                return False
            if is_fault:
                self.watch.fail(kill.target, kill.seconds)
            else:
                _kill(pids)
            return True

        if kill.moment == "step":
            if not wait_until(lambda: _num_steps(started) >= kill.number, started, START_SECONDS):
                return False, False
            has_acted = act()
        else:
            self.watch.expect({"upload": "PUT", "download": "GET"}[kill.moment], kill.number, act)
            wait_until(self.watch.has_acted.is_set, started, START_SECONDS, every=0.005)
            has_acted = self.watch.has_acted.is_set()
        if is_fault and has_acted:
            self._kill_ranks_later(started, kill)
        return has_acted, has_acted and is_uploading_after(self.watch, self.prefix)

    def _kill_ranks_later(self, started: Started, kill: StoreKill) -> None:
        """All ranks are killed once they have trained more steps, or while they still download. Training goes on
        while the store fails.
        """
        wanted = _num_steps(started) + kill.steps
        has_trained = wait_until(lambda: _num_steps(started) >= wanted, started, STEPS_SECONDS)
        if not has_trained and kill.moment == "upload" and not started.ended() and wanted <= self.plan.steps:
            where = f"{self.folder.name} start {len(self.reports) + 1}"
            self.wrong.append(f"{where}: no {kill.steps} steps in {STEPS_SECONDS:.0f} s after {kill.target}")
        _kill(started.pids("ranks", random.Random(0)))

    def _check_end(self) -> None:
        name = self.folder.name
        steps = {step for one in self.reports for step in one.steps}
        if missing := sorted(set(range(1, self.plan.steps + 1)) - steps):
            self.wrong.append(f"{name}: no line for steps {missing}")
        stored, torn = stored_steps(self.watch.server, self.prefix)
        self.wrong += [f"{name}: {text}" for text in torn]
        if not stored or stored[0] != self.plan.steps:
            self.wrong.append(f"{name}: the newest checkpoint in the store is {stored[:1]}, the last step is not there")
            return
        copy = download(self.watch.server, self.prefix, stored[0], self.folder / "stored")
        own = list_checkpoints(self.reference.run_dir / "checkpoints")[0]
        answer = self.ranks.run(SAME, str(copy), str(own), ranks=1, check=False)
        if answer["codes"] != [0]:
            self.wrong.append(f"{name}: the final state in the store differs: {answer['output'][0][-500:]}")


def is_uploading_after(watch: StoreWatch, prefix: str) -> bool:
    """`is_uploading`, once the store answers again."""
    watch.reset()
    return is_uploading(watch.server, prefix)


def download(server: StoreServer, prefix: str, step: int, target: Path) -> Path:
    """The files of a stored checkpoint, read by a client of the store's own maker."""
    folder = f"{prefix}/step-{step:08d}/"
    for key in server.keys(BUCKET, folder):
        file = target / key.removeprefix(folder)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(_read(server, key))
    return target


def _num_steps(started: Started) -> int:
    return sum(row["type"] == "step" for row in read_rows(started.run_dir)) if started.run_dir else 0


def _kill(pids: Sequence[int]) -> None:
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue


@dataclass(slots=True)
class StoreResult:
    """All starts, and what was wrong."""

    reports: list[Report] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)

    @property
    def killed(self) -> list[Report]:
        return [report for report in self.reports if report.kill is not None]

    @property
    def targets(self) -> Counter[str]:
        return Counter(report.kill.target for report in self.killed)


def run(
    kills: Sequence[StoreKill],
    steps: int,
    cases: Sequence[str],
    seed: int,
    server: StoreServer,
    folder: Path,
    tell: Callable[[str], None] = lambda _: None,
) -> StoreResult:
    """Kill as planned, in as many chains as it takes."""
    from tests.support.training.forked_ranks import ForkedRanks

    result, left, chains = StoreResult(), list(kills), 0
    with reached_by_ranks(server):
        ranks = ForkedRanks()
        plan = Plan((), steps, cases, find_free_port(), seed)
        references: dict[str, Report] = {}
        try:
            while left:
                case = cases[chains % len(cases)]
                if case not in references:
                    references[case] = run_reference(plan, case, folder / f"reference-{case}", ranks)
                chain = StoreChain(
                    plan, case, folder / f"chain-{chains}", references[case], ranks, StoreWatch(server), tell
                )
                chain.run(left)
                result.reports += chain.reports
                result.wrong += chain.wrong
                chains += 1
        finally:
            ranks.close()
            shm.remove_unused_buffers({plan.port})
    return result
