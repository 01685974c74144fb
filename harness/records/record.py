"""Reads a run directory, whatever state it is in: empty, torn, failed, still running. Draws nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from harness.locks import held_by
from harness.plan.plan import Plan, make_plan
from harness.plan.run import Run
from harness.records.files import (
    METRICS,
    Lines,
    edges_of,
    json_of,
    metrics_of,
    number,
    read_json,
    read_text,
    without_lost,
)
from harness.records.plan_file import NAME as PLAN
from harness.records.plan_file import read_plan
from harness.verdicts import Verdict, read_verdict

__all__ = ["Points", "Record", "number", "read_record"]
Points = list[tuple[float, float]]
LOCK = "lock"
"""As `harness.launching.rundir` has it."""


@dataclass(frozen=True)
class Record:
    """What a run directory says. `unread` counts lines of metrics.jsonl that are not JSON: a killed run's last one;
    `lost` counts steps that were taken again after a restart; `held` whether a process holds the directory now.
    """

    folder: Path
    name: str
    lines: Lines
    unread: int
    lost: int
    plan: Mapping[str, Any]
    statuses: Lines
    findings: Lines
    ignored: Lines
    left_out: Lines
    attempts: Lines
    run: Run | None
    held: bool
    spec_text: str
    config_text: str
    sample: str
    claims: Lines = ()
    """What the run asked its own engine, from `attestation.json`."""
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

    def of(self, kind: str) -> Lines:
        """The lines of metrics.jsonl of one type, in order."""
        return self._by_type.get(kind, ())

    @property
    def start(self) -> Mapping[str, Any]:
        """The first line of the run; empty when it never began."""
        return next(iter(self.of("run")), {})

    @property
    def state(self) -> str:
        """How it ended: by the verdict, else by the ranks, else by its last line, else `not started`; while it is held,
        `running`.
        """
        if self.held:
            return "running"
        if self.verdict is not None:
            return self.verdict.state
        states = [str(status.get("state", "")) for status in self.statuses]
        if "failed" in states:
            return "failed"
        ended = self.of("end")
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
                step = number(line.get("step"))
                if step is None:
                    continue
                for key, value in line.items():
                    if type(value) is float or type(value) is int:
                        usable = number(value)
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
                step = number(line.get("step"))
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
        steps = self.of("step")
        return bool(steps) and not any(key.startswith("memory_gpu") for line in steps[:50] for key in line)

    @cached_property
    def planned(self) -> Plan | None:
        """The plan, made again from the run; None where the run cannot be read."""
        if self.run is None:
            return None
        folder = json_of(self.folder / "launch.json").get("folder")
        base = Path(folder) if isinstance(folder, str) else self.folder
        return make_plan(self.run, base, "cpu" if self.on_cpu else None)


def read_record(run_dir: Path, *, brief: bool = False) -> Record:
    """Everything that can be read; what is missing or broken is left empty, and `unusable` says what is broken. `brief`
    reads only the first and the last lines of metrics.jsonl, and no plan. Raises nothing.
    """
    files = _Files(run_dir)
    if brief:
        lines, why = edges_of(run_dir)
        unread = 0
    else:
        lines, unread, why = metrics_of(run_dir)
    files.note(METRICS, why)
    lines, lost = without_lost(lines)
    plan, why = read_plan(run_dir)
    files.note(PLAN, why)
    said = files.json("findings.json")
    record = Record(
        folder=run_dir,
        name=run_dir.resolve().name,
        lines=lines,
        unread=unread,
        lost=lost,
        plan=plan,
        statuses=files.statuses(),
        findings=_objects(said.get("findings")),
        ignored=_objects(said.get("ignored")),
        left_out=_objects(said.get("left_out")),
        attempts=_objects(files.json("restarts.json").get("attempts")),
        run=files.run(),
        held=held_by(run_dir / LOCK) is not None,
        spec_text=files.text("spec.yaml"),
        config_text=files.text("ds_config.json"),
        sample=files.text("sample.txt"),
        claims=_objects(files.json("attestation.json").get("claims")),
        verdict=read_verdict(run_dir),
    )
    record = replace(record, unusable=tuple(files.unusable))
    return record if brief else _with_plan(record)


class _Files:
    """The files of one run directory by name; `unusable` grows as they are read."""

    def __init__(self, run_dir: Path) -> None:
        self._run_dir = run_dir
        self.unusable: list[str] = []

    def note(self, name: str, why: str) -> None:
        """A file that could not be used; nothing where there is no reason."""
        if why:
            self.unusable.append(f"`{name}` was left out: {why}")

    def text(self, name: str) -> str:
        """A text; empty where there is none."""
        text, why = read_text(self._run_dir / name)
        self.note(name, why)
        return text

    def json(self, name: str) -> dict[str, Any]:
        """An object; empty where there is none."""
        body, why = read_json(self._run_dir / name)
        self.note(name, why)
        return body

    def statuses(self) -> Lines:
        """What the ranks said of themselves, in the order of the ranks."""
        folder = self._run_dir / "status"
        if folder.is_symlink():
            self.note(folder.name, "it is a link")
            return ()
        found = (self.json(f"{folder.name}/{path.name}") for path in sorted(folder.glob("rank-*.json")))
        return tuple(status for status in found if status)

    def run(self) -> Run | None:
        """The resolved spec."""
        name = "spec.resolved.json"
        body = self.json(name)
        if not body:
            return None
        try:
            return Run.from_json(body)
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError):
            self.note(name, "it is not a run as this release writes it")
            return None


def _with_plan(record: Record) -> Record:
    """With the plan that was made before the run; where none was kept, or it was for a device of unknown kind and the
    run had none but the CPU, with the same arithmetic again.
    """
    kept = record.plan
    usable = isinstance(kept.get("rows"), list) and not (record.on_cpu and kept.get("device") is None)
    if usable or record.planned is None:
        return record
    return replace(record, plan=record.planned.to_json())


def _objects(value: Any) -> Lines:
    return tuple(v for v in value if isinstance(v, dict)) if isinstance(value, list) else ()
