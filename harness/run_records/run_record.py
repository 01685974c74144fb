# SPDX-License-Identifier: Apache-2.0
"""Reads a run directory in any state: empty, torn, failed, still running. Renders nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from harness.locks import RUN_LOCK, current_holder
from harness.plan.plan_json import plan_json
from harness.plan.planner import Plan, make_plan
from harness.run.objective_facts import facts_of
from harness.run.resolved_run import ResolvedRun
from harness.run_records.plan_file import PLAN, read_plan
from harness.run_records.run_files import (
    METRICS,
    Lines,
    drop_lost_steps,
    json_of,
    read_json,
    read_metrics,
    read_metrics_ends,
    read_text,
)
from harness.training_lineage import TrainingPart, find_earlier_runs, read_training_part
from harness.units import finite_number
from harness.verdicts import Verdict, read_verdict

Points = list[tuple[float, float]]


def _with_inner(line: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """The fields of a line, and those of its maps of metrics as `metrics.NAME` and `own.NAME`."""
    yield from line.items()
    for key in ("metrics", "own"):
        inner = line.get(key)
        if isinstance(inner, Mapping):
            yield from ((f"{key}.{name}", value) for name, value in inner.items())


@dataclass(frozen=True)
class RunRecord:
    """The content of a run directory. `unread_lines` counts lines of metrics.jsonl that are not JSON, such as a killed
    run's last one; `lost` counts steps that a restart repeated; `is_locked`: a process holds the directory now.
    """

    folder: Path
    name: str
    lines: Lines
    unread_lines: int
    lost: int
    plan: Mapping[str, Any]
    statuses: Lines
    findings: Lines
    ignored: Lines
    left_out: Lines
    attempts: Lines
    run: ResolvedRun | None
    is_locked: bool
    spec_text: str
    config_text: str
    sample: str
    part: TrainingPart
    """Its place among the runs of one training."""
    engine_checks: Lines = ()
    """The checks of the run's own engine, from `engine_checks.json`."""
    unusable: tuple[str, ...] = ()
    """Each unusable file, with the reason."""
    verdict: Verdict | None = None
    """The supervisor's verdict, which precedes the ranks' statuses; None while the run runs, or without a verdict."""
    history: Lines = ()
    """The lines of the runs that this one resumed, and of those that they resumed, the oldest first."""

    @cached_property
    def training(self) -> RunRecord:
        """The record with the lines of the whole training: from its first step to the last of this run."""
        if not self.history:
            return self
        lines, lost = drop_lost_steps((*self.history, *self.lines))
        return replace(self, lines=lines, lost=self.lost + lost, history=())

    @cached_property
    def _by_type(self) -> Mapping[str, Lines]:
        by_type: dict[str, list[Mapping[str, Any]]] = {}
        for line in self.lines:
            by_type.setdefault(str(line.get("type")), []).append(line)
        return {kind: tuple(lines) for kind, lines in by_type.items()}

    def lines_of(self, kind: str) -> Lines:
        """The lines of metrics.jsonl of one type, in order."""
        return self._by_type.get(kind, ())

    @cached_property
    def loss_unit(self) -> str:
        """The unit whose mean the loss is: `token` for a run without a spec, too."""
        return facts_of(self.run.spec.objective if self.run is not None else "causal_lm").unit

    def measured_names(self) -> list[str]:
        """The keys of `points` for what an objective or the user's own code measures beside the loss."""
        return list(dict.fromkeys(key for _, key in self._columns if "." in key))

    @property
    def header(self) -> Mapping[str, Any]:
        """The first line of the run; empty when it never started."""
        return next(iter(self.lines_of("run")), {})

    @property
    def state(self) -> str:
        """The state of the run: `running` while it is locked; else by the verdict, by the ranks, by its last line; else
        `watched` for somebody else's training under `harness.watch`, or `not started`.
        """
        if self.is_locked:
            return "running"
        if self.verdict is not None:
            return self.verdict.state
        states = [str(status.get("state", "")) for status in self.statuses]
        if "failed" in states:
            return "failed"
        end_lines = self.lines_of("end")
        if end_lines:
            return str(end_lines[-1].get("state", "ended"))
        if states and all(state in ("completed", "stopped") for state in states):
            return states[0]
        has_begun = bool(self.lines or states)
        return "broken off" if has_begun else "watched" if self.engine_checks else "not started"

    @cached_property
    def _columns(self) -> Mapping[tuple[str, str], Points]:
        """(step, value) by type and key: one pass, for runs of many steps and reports of many curves."""
        columns: dict[tuple[str, str], Points] = {}
        for kind, lines in self._by_type.items():
            for line in lines:
                step = finite_number(line.get("step"))
                if step is None:
                    continue
                for key, value in _with_inner(line):
                    if type(value) is float or type(value) is int:
                        number = finite_number(value)
                        if number is not None:
                            columns.setdefault((kind, key), []).append((step, number))
        return columns

    def points(self, kind: str, *keys: str) -> Points:
        """(step, value) of the finite values under the first of `keys` that a line has."""
        columns = [self._columns.get((kind, key), []) for key in keys]
        if sum(bool(column) for column in columns) < 2:
            return next((column for column in columns if column), [])
        by_step = {step: value for column in reversed(columns) for step, value in column}
        return sorted(by_step.items())

    @cached_property
    def _first_steps(self) -> frozenset[float]:
        """The first step of each start, which includes the warm-up."""
        steps, is_first = set(), True
        for line in self.lines:
            kind = line.get("type")
            if kind in ("run", "restart"):
                is_first = True
            elif kind == "step":
                step = finite_number(line.get("step"))
                if is_first and step is not None:
                    steps.add(step)
                is_first = False
        return frozenset(steps)

    def values(self, *keys: str) -> list[float]:
        """The values of steps under the first of `keys` that a line has, without the first step of each start where
        there are others.
        """
        points = self.points("step", *keys)
        typical = [value for step, value in points if step not in self._first_steps]
        return typical or [value for _, value in points]

    @property
    def on_cpu(self) -> bool:
        """Are there steps, and none with a GPU's memory?"""
        steps = self.lines_of("step")
        return bool(steps) and not any(key.startswith("memory_gpu") for line in steps[:50] for key in line)

    @property
    def base_dir(self) -> Path:
        """The folder that relative paths of the spec start from."""
        folder = json_of(self.folder / "launch.json").get("folder")
        return Path(folder) if isinstance(folder, str) else self.folder

    @cached_property
    def rebuilt_plan(self) -> Plan | None:
        """The plan, computed again from the run, without a program; None where the run cannot be read."""
        if self.run is None:
            return None
        return make_plan(self.run, self.base_dir, "cpu" if self.on_cpu else None, build=False)


def read_run_record(run_dir: Path, *, brief: bool = False) -> RunRecord:
    """Read everything that is readable; the rest stays empty, and `unusable` lists the broken files. `brief` reads only
    the first and the last lines of metrics.jsonl, no plan, and of a run that has ended the status of rank 0 alone.
    Raises nothing.
    """
    files = _RunFiles(run_dir)
    unread = 0
    if brief:
        lines, reason = read_metrics_ends(run_dir)
    else:
        lines, unread, reason = read_metrics(run_dir)
    files.add_unusable(METRICS, reason)
    lines, lost = drop_lost_steps(lines)
    history = tuple(line for earlier in find_earlier_runs(run_dir) for line in _read_lines(earlier, brief=brief))
    plan, reason = read_plan(run_dir)
    files.add_unusable(PLAN, reason)
    report = files.read_json("findings.json")
    engine_checks = files.read_json("engine_checks.json")
    verdict = read_verdict(run_dir)
    record = RunRecord(
        folder=run_dir,
        name=run_dir.resolve().name,
        lines=lines,
        unread_lines=unread,
        lost=lost,
        plan=plan,
        statuses=files.read_statuses(only_first=brief and verdict is not None),
        findings=_dicts_in(report.get("findings", engine_checks.get("findings"))),
        ignored=_dicts_in(report.get("ignored")),
        left_out=_dicts_in(report.get("left_out")),
        attempts=_dicts_in(files.read_json("restarts.json").get("attempts")),
        run=files.read_run(),
        is_locked=current_holder(run_dir / RUN_LOCK) is not None,
        spec_text=files.read_text("spec.yaml"),
        config_text=files.read_text("ds_config.json"),
        sample=files.read_text("sample.txt"),
        engine_checks=_dicts_in(engine_checks.get("claims")),
        verdict=verdict,
        history=history,
        part=read_training_part(run_dir),
    )
    record = replace(record, unusable=tuple(files.unusable))
    return record if brief else _with_plan(record)


def _read_lines(run_dir: Path, *, brief: bool) -> Lines:
    return read_metrics_ends(run_dir)[0] if brief else read_metrics(run_dir)[0]


class _RunFiles:
    """The files of one run directory by name; `unusable` grows as they are read."""

    def __init__(self, run_dir: Path) -> None:
        self._run_dir = run_dir
        self.unusable: list[str] = []

    def add_unusable(self, name: str, reason: str) -> None:
        """Add a file that cannot be used; nothing where there is no reason."""
        if reason:
            self.unusable.append(f"`{name}` was left out: {reason}")

    def read_text(self, name: str) -> str:
        """A text; empty if there is none."""
        text, reason = read_text(self._run_dir / name)
        self.add_unusable(name, reason)
        return text

    def read_json(self, name: str) -> dict[str, Any]:
        """An object; empty if there is none."""
        body, reason = read_json(self._run_dir / name)
        self.add_unusable(name, reason)
        return body

    def read_statuses(self, *, only_first: bool) -> Lines:
        """The statuses of the ranks, in their order; that of rank 0 alone where it is enough."""
        folder = self._run_dir / "status"
        if folder.is_symlink():
            self.add_unusable(folder.name, "it is a link")
            return ()
        names = ["rank-00000.json"] if only_first else sorted(path.name for path in folder.glob("rank-*.json"))
        statuses = (self.read_json(f"{folder.name}/{name}") for name in names)
        return tuple(status for status in statuses if status)

    def read_run(self) -> ResolvedRun | None:
        """The resolved spec."""
        name = "spec.resolved.json"
        body = self.read_json(name)
        if not body:
            return None
        try:
            return ResolvedRun.from_json(body, any_version=True)
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError):
            self.add_unusable(name, "it is not a run that this release can read")
            return None


def _with_plan(record: RunRecord) -> RunRecord:
    """The record with the plan from before the run. Without one, or with one for an unknown device and a run on the
    CPU, the same arithmetic again.
    """
    plan = record.plan
    is_usable = isinstance(plan.get("rows"), list) and not (record.on_cpu and plan.get("device") is None)
    if is_usable or record.rebuilt_plan is None:
        return record
    return replace(record, plan=plan_json(record.rebuilt_plan))


def _dicts_in(value: Any) -> Lines:
    return tuple(v for v in value if isinstance(v, dict)) if isinstance(value, list) else ()
