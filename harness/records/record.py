"""Reads a run directory, whatever state it is in: empty, torn, failed, still running. Draws nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from harness.locks import held_by
from harness.plan.plan import Plan, make_plan
from harness.plan.run import Run
from harness.records.files import Lines, edges_of, json_of, metrics_of, number, text_of, without_lost

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
        """How it ended: by its last line, else by the ranks, else `not started`; while it is held, `running`."""
        if self.held:
            return "running"
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
                        finite = value if type(value) is float and value - value == 0 else number(value)
                        if finite is not None:
                            found.setdefault((kind, key), []).append((step, finite))
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
    """Everything that can be read; what is missing or broken is left empty. `brief` reads only the first and the last
    lines of metrics.jsonl, and no plan. Raises nothing.
    """
    lines, unread = (edges_of(run_dir), 0) if brief else metrics_of(run_dir)
    lines, lost = without_lost(lines)
    run = _run(run_dir / "spec.resolved.json")
    statuses = [json_of(path) for path in sorted((run_dir / "status").glob("rank-*.json"))]
    said = json_of(run_dir / "findings.json")
    record = Record(
        folder=run_dir,
        name=run_dir.resolve().name,
        lines=lines,
        unread=unread,
        lost=lost,
        plan=json_of(run_dir / "plan.json"),
        statuses=tuple(status for status in statuses if status),
        findings=_objects(said.get("findings")),
        ignored=_objects(said.get("ignored")),
        left_out=_objects(said.get("left_out")),
        attempts=_objects(json_of(run_dir / "restarts.json").get("attempts")),
        run=run,
        held=held_by(run_dir / LOCK) is not None,
        spec_text=text_of(run_dir / "spec.yaml"),
        config_text=text_of(run_dir / "ds_config.json"),
        sample=text_of(run_dir / "sample.txt"),
        claims=_objects(json_of(run_dir / "attestation.json").get("claims")),
    )
    return record if brief else _with_plan(record)


def _with_plan(record: Record) -> Record:
    """With the plan that was made before the run; where none was kept, or it was for a device of unknown kind and the
    run had none but the CPU, with the same arithmetic again.
    """
    from dataclasses import replace

    kept = record.plan
    usable = isinstance(kept.get("rows"), list) and not (record.on_cpu and kept.get("device") is None)
    if usable or record.planned is None:
        return record
    return replace(record, plan=record.planned.to_json())


def _objects(value: Any) -> Lines:
    return tuple(v for v in value if isinstance(v, dict)) if isinstance(value, list) else ()


def _run(path: Path) -> Run | None:
    try:
        return Run.from_json(json_of(path))
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
