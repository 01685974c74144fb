"""Reads a run directory, whatever state it is in: empty, torn, failed, still running. Draws nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from harness.locks import current_holder
from harness.plan.plan_json import plan_json
from harness.plan.planner import Plan, make_plan
from harness.plan.resolved_run import ResolvedRun
from harness.run_records.plan_file import PLAN as PLAN
from harness.run_records.plan_file import read_plan
from harness.run_records.run_files import (
    METRICS,
    Lines,
    drop_lost_steps,
    finite_number,
    json_of,
    read_json,
    read_metrics,
    read_metrics_ends,
    read_text,
)
from harness.verdicts import Verdict, read_verdict

__all__ = ["Points", "RunRecord", "finite_number", "read_run_record"]
Points = list[tuple[float, float]]
LOCK = "lock"
"""As `harness.launching.setup.run_dir` has it."""


@dataclass(frozen=True)
class RunRecord:
    """What a run directory says. `unread` counts lines of metrics.jsonl that are not JSON: a killed run's last one;
    `lost` counts steps that were taken again after a restart; `held` whether a process holds the directory now.
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
    engine_checks: Lines = ()
    """What the run asked its own engine, from `engine_checks.json`."""
    unusable: tuple[str, ...] = ()
    """Each file that is there and was left out, with the reason."""
    verdict: Verdict | None = None
    """What the supervisor saw of its end, which comes before what ranks say; None while it runs, or nobody wrote it."""

    @cached_property
    def _by_type(self) -> Mapping[str, Lines]:
        found: dict[str, list[Mapping[str, Any]]] = {}
        for line in self.lines:
            found.setdefault(str(line.get("type")), []).append(line)
        return {kind: tuple(lines) for kind, lines in found.items()}

    def lines_of(self, kind: str) -> Lines:
        """The lines of metrics.jsonl of one type, in order."""
        return self._by_type.get(kind, ())

    @property
    def header(self) -> Mapping[str, Any]:
        """The first line of the run; empty when it never began."""
        return next(iter(self.lines_of("run")), {})

    @property
    def state(self) -> str:
        """How it ended: by the verdict, else by the ranks, else by its last line, else `not started`; while it is held,
        `running`.
        """
        if self.is_locked:
            return "running"
        if self.verdict is not None:
            return self.verdict.state
        states = [str(status.get("state", "")) for status in self.statuses]
        if "failed" in states:
            return "failed"
        ended = self.lines_of("end")
        if ended:
            return str(ended[-1].get("state", "ended"))
        if states and all(state in ("completed", "stopped") for state in states):
            return states[0]
        return "broken off" if self.lines or states else "not started"

    @cached_property
    def _columns(self) -> Mapping[tuple[str, str], Points]:
        """(step, value) under every type and key: one pass, for runs of many steps and reports of many curves."""
        found: dict[tuple[str, str], Points] = {}
        for kind, lines in self._by_type.items():
            for line in lines:
                step = finite_number(line.get("step"))
                if step is None:
                    continue
                for key, value in line.items():
                    if type(value) is float or type(value) is int:
                        usable = finite_number(value)
                        if usable is not None:
                            found.setdefault((kind, key), []).append((step, usable))
        return found

    def points(self, kind: str, *keys: str) -> Points:
        """(step, value) of the finite values under the first of `keys` that a line has."""
        columns = [self._columns.get((kind, key), []) for key in keys]
        if sum(bool(column) for column in columns) < 2:
            return next((column for column in columns if column), [])
        merged = {step: value for column in reversed(columns) for step, value in column}
        return sorted(merged.items())

    @cached_property
    def _first_steps(self) -> frozenset[float]:
        """The first step of each start, which warms up."""
        found, fresh = set(), True
        for line in self.lines:
            kind = line.get("type")
            if kind in ("run", "restart"):
                fresh = True
            elif kind == "step":
                step = finite_number(line.get("step"))
                if fresh and step is not None:
                    found.add(step)
                fresh = False
        return frozenset(found)

    def values(self, *keys: str) -> list[float]:
        """The values of steps under the first of `keys` that a line has, without those of steps that warm up where
        there are others.
        """
        points = self.points("step", *keys)
        typical = [value for step, value in points if step not in self._first_steps]
        return typical or [value for _, value in points]

    @property
    def on_cpu(self) -> bool:
        """Whether steps were taken, and none of them tells of a GPU's memory."""
        steps = self.lines_of("step")
        return bool(steps) and not any(key.startswith("memory_gpu") for line in steps[:50] for key in line)

    @cached_property
    def rebuilt_plan(self) -> Plan | None:
        """The plan, made again from the run; None where the run cannot be read."""
        if self.run is None:
            return None
        folder = json_of(self.folder / "launch.json").get("folder")
        base = Path(folder) if isinstance(folder, str) else self.folder
        return make_plan(self.run, base, "cpu" if self.on_cpu else None)


def read_run_record(run_dir: Path, *, brief: bool = False) -> RunRecord:
    """Everything that can be read; what is missing or broken is left empty, and `unusable` says what is broken. `brief`
    reads only the first and the last lines of metrics.jsonl, and no plan. Raises nothing.
    """
    files = _RunFiles(run_dir)
    if brief:
        lines, why = read_metrics_ends(run_dir)
        unread = 0
    else:
        lines, unread, why = read_metrics(run_dir)
    files.add_unusable(METRICS, why)
    lines, lost = drop_lost_steps(lines)
    plan, why = read_plan(run_dir)
    files.add_unusable(PLAN, why)
    said = files.read_json("findings.json")
    record = RunRecord(
        folder=run_dir,
        name=run_dir.resolve().name,
        lines=lines,
        unread_lines=unread,
        lost=lost,
        plan=plan,
        statuses=files.read_statuses(),
        findings=_dicts_in(said.get("findings")),
        ignored=_dicts_in(said.get("ignored")),
        left_out=_dicts_in(said.get("left_out")),
        attempts=_dicts_in(files.read_json("restarts.json").get("attempts")),
        run=files.read_run(),
        is_locked=current_holder(run_dir / LOCK) is not None,
        spec_text=files.read_text("spec.yaml"),
        config_text=files.read_text("ds_config.json"),
        sample=files.read_text("sample.txt"),
        engine_checks=_dicts_in(files.read_json("engine_checks.json").get("claims")),
        verdict=read_verdict(run_dir),
    )
    record = replace(record, unusable=tuple(files.unusable))
    return record if brief else _with_plan(record)


class _RunFiles:
    """The files of one run directory by name; `unusable` grows as they are read."""

    def __init__(self, run_dir: Path) -> None:
        self._run_dir = run_dir
        self.unusable: list[str] = []

    def add_unusable(self, name: str, why: str) -> None:
        """A file that could not be used; nothing where there is no reason."""
        if why:
            self.unusable.append(f"`{name}` was left out: {why}")

    def read_text(self, name: str) -> str:
        """A text; empty where there is none."""
        text, why = read_text(self._run_dir / name)
        self.add_unusable(name, why)
        return text

    def read_json(self, name: str) -> dict[str, Any]:
        """An object; empty where there is none."""
        body, why = read_json(self._run_dir / name)
        self.add_unusable(name, why)
        return body

    def read_statuses(self) -> Lines:
        """What the ranks said of themselves, in the order of the ranks."""
        folder = self._run_dir / "status"
        if folder.is_symlink():
            self.add_unusable(folder.name, "it is a link")
            return ()
        found = (self.read_json(f"{folder.name}/{path.name}") for path in sorted(folder.glob("rank-*.json")))
        return tuple(status for status in found if status)

    def read_run(self) -> ResolvedRun | None:
        """The resolved spec."""
        name = "spec.resolved.json"
        body = self.read_json(name)
        if not body:
            return None
        try:
            return ResolvedRun.from_json(body)
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError):
            self.add_unusable(name, "it is not a run as this release writes it")
            return None


def _with_plan(record: RunRecord) -> RunRecord:
    """With the plan that was made before the run; where none was kept, or it was for a device of unknown kind and the
    run had none but the CPU, with the same arithmetic again.
    """
    kept = record.plan
    usable = isinstance(kept.get("rows"), list) and not (record.on_cpu and kept.get("device") is None)
    if usable or record.rebuilt_plan is None:
        return record
    return replace(record, plan=plan_json(record.rebuilt_plan))


def _dicts_in(value: Any) -> Lines:
    return tuple(v for v in value if isinstance(v, dict)) if isinstance(value, list) else ()
