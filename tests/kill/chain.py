# SPDX-License-Identifier: Apache-2.0
"""Chains of killed runs: each start goes on from the newest complete checkpoint of the last, until the training is over;
then every step's loss and the final state must be those of a run that nobody touched. No tests here.
"""

# ruff: noqa: S311  (seeded on purpose)

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness.checkpoints.latest import list_checkpoints
from harness.launching.process import shm
from harness.launching.setup.run_dir import read_ports, write_run_dir

from .attempt import Forked, Kill, Launched, Report, Started, go
from .spec import LAYOUTS, write_spec

ROOT = Path(__file__).resolve().parents[2]
TRAIN = ROOT / "launch" / "train.py"
SAME = Path(__file__).with_name("same_checkpoint.py")


@dataclass(frozen=True, slots=True)
class Plan:
    """`kills` in order; `cases` (names in `spec.LAYOUTS`) are taken in turn, one a chain."""

    kills: Sequence[Kill]
    steps: int
    cases: Sequence[str]
    port: int
    seed: int


@dataclass(slots=True)
class Result:
    """All starts, what was wrong (nothing, it is hoped), and how long it took."""

    reports: list[Report] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    chains: int = 0
    seconds: float = 0.0

    @property
    def killed(self) -> list[Report]:
        return [report for report in self.reports if report.kill is not None]


def run(plan: Plan, folder: Path, tell: Callable[[str], None] = lambda _: None) -> Result:
    """Kill as planned, in as many chains as it takes."""
    from tests.support.training.forked_ranks import share_ranks

    ranks = share_ranks()
    began, result, left = time.monotonic(), Result(), list(plan.kills)
    references: dict[str, Report] = {}
    while left:
        case = plan.cases[result.chains % len(plan.cases)]
        if case not in references:
            references[case] = run_reference(plan, case, folder / f"reference-{case}", ranks)
            tell(f"reference of {case}: {len(references[case].steps)} steps")
        chain = _Chain(plan, case, folder / f"chain-{result.chains}", references[case], ranks, tell)
        chain.run(left)
        result.reports += chain.reports
        result.wrong += chain.wrong
        result.chains += 1
    shm.remove_unused_buffers({plan.port})
    result.seconds = time.monotonic() - began
    return result


def run_reference(plan: Plan, case: str, folder: Path, ranks: Any) -> Report:
    """The same run, left alone; it saves at its end only."""
    spec = write_spec(folder, steps=plan.steps, case=case, port=plan.port)
    overrides = ("checkpoint.save_steps=null", *LAYOUTS[case].reference)
    report = go(fork(spec, ranks, case, *overrides), None, random.Random(0))
    if not report.completed or len(report.steps) != plan.steps:
        raise RuntimeError(f"the reference did not complete: {report.output[-3000:]}")
    return report


@dataclass(slots=True)
class _Chain:
    plan: Plan
    case: str
    folder: Path
    reference: Report
    ranks: Any
    tell: Callable[[str], None]
    reports: list[Report] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)

    def run(self, left: list[Kill]) -> None:
        """Start and kill until the training is over; kills that came to be are taken off `left`."""
        spec = write_spec(self.folder, steps=self.plan.steps, case=self.case, port=self.plan.port)
        drawn = random.Random(f"{self.plan.seed} {self.folder.name}")
        while True:
            kill = left[0] if left else None
            expected = self._newest()
            forked = kill.forked if kill else True
            started: Started = fork(spec, self.ranks, self.case) if forked else Launched(spec, "auto")
            report = go(started, kill, drawn)
            self._check(report, expected)
            self.reports.append(report)
            self.tell(f"{len(self.reports)}: {report.to_json()}")
            if report.kill is not None:
                left.pop(0)
            if report.completed:
                break
            if report.kill is None:
                raise RuntimeError(f"it ended by itself: {report.output[-3000:]}")
        self._check_end()

    def _newest(self) -> str | None:
        """What `--resume auto` has to find: the last step of the last run that saved any."""
        for report in reversed(self.reports):
            saved = list_checkpoints(report.run_dir / "checkpoints")
            if saved:
                return str(saved[0].resolve())
        return None

    def _check(self, report: Report, expected: str | None) -> None:
        where = f"{self.folder.name} start {len(self.reports) + 1}"
        found = [*report.wrong]
        if report.resumed_from != expected:
            found.append(f"it went on from {report.resumed_from}, the newest complete one is {expected}")
        for step, loss in report.steps.items():
            if loss != self.reference.steps.get(step):
                found.append(f"loss of step {step} is {loss}, should be {self.reference.steps.get(step)}")
        patch, states = LAYOUTS[self.case].patch, report.patches
        if patch and states and states.get(patch) != "applied":
            found.append(f"patch {patch} is {states.get(patch)}")
        self.wrong += [f"{where}: {text}" for text in found]

    def _check_end(self) -> None:
        steps = {step for report in self.reports for step in report.steps}
        missing = sorted(set(range(1, self.plan.steps + 1)) - steps)
        if missing:
            self.wrong.append(f"{self.folder.name}: no line for steps {missing}")
        ends = [list_checkpoints(report.run_dir / "checkpoints")[0] for report in (self.reports[-1], self.reference)]
        answer = self.ranks.run(SAME, *map(str, ends), ranks=1, check=False)
        if answer["codes"] != [0]:
            self.wrong.append(f"{self.folder.name}: the final state differs: {answer['output'][0][-500:]}")
        shm.remove_unused_buffers(read_ports(self.folder / "runs"))
        left = [b.path.name for b in shm.find_buffers() if b.port in read_ports(self.folder / "runs")]
        self.wrong += [f"{self.folder.name}: {name} is left in {shm.FOLDER}" for name in left]


def fork(spec: Path, ranks: Any, case: str, *overrides: str, resume: str = "auto") -> Forked:
    """Start the run of a spec on forked ranks."""
    from harness.cli.console import ConsoleLog
    from harness.launching.setup.launch_request import LaunchRejected, LaunchRequest
    from harness.launching.setup.prepare import prepare

    def make(file: Path) -> tuple[Path, str | None]:
        setup = prepare(LaunchRequest(str(file), overrides, resume=resume), ConsoleLog())
        assert not isinstance(setup, LaunchRejected), setup.findings
        write_run_dir(setup.plan)
        source = setup.plan.resume
        return setup.plan.run_dir, str(source) if source else None

    return Forked(spec, make, lambda *words: ranks.run(TRAIN, *words, ranks=LAYOUTS[case].ranks, check=False))


def draw(count: int, launched: int, seed: int) -> list[Kill]:
    """So many kills, `launched` of them of runs under the real launcher, each of whose processes is hit in turn."""
    drawn = random.Random(seed)
    turn = ("supervisor", "launcher", "rank", "everything", "runner", "ranks")
    real = [Kill.draw(drawn, forked=False, target=turn[i % len(turn)]) for i in range(launched)]
    kills = [*real, *(Kill.draw(drawn, forked=True) for _ in range(count - launched))]
    drawn.shuffle(kills)
    return kills
