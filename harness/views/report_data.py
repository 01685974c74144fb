"""Reads a run directory for the report, whatever state it is in: empty, torn, failed, still running. Draws nothing."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.plan.plan import make_plan
from harness.plan.run import Run

Lines = tuple[Mapping[str, Any], ...]
Points = list[tuple[float, float]]
_BY_STEP = {"step", "eval"}


@dataclass(frozen=True, slots=True)
class Record:
    """What a run directory says. `unread` counts lines of metrics.jsonl that are not JSON: a killed run's last one."""

    name: str
    lines: Lines
    unread: int
    plan: Mapping[str, Any]
    statuses: Lines
    findings: Lines
    run: Run | None
    spec_text: str
    config_text: str
    sample: str

    def of(self, kind: str) -> Lines:
        """The lines of metrics.jsonl of one type, in order."""
        return tuple(line for line in self.lines if line.get("type") == kind)

    @property
    def start(self) -> Mapping[str, Any]:
        """The first line of the run; empty when it never began."""
        return next(iter(self.of("run")), {})

    @property
    def state(self) -> str:
        """How it ended: by its last line, else by the ranks, else `not started`."""
        states = [str(status.get("state", "")) for status in self.statuses]
        if "failed" in states:
            return "failed"
        ended = self.of("end")
        if ended:
            return str(ended[-1].get("state", "ended"))
        if states and all(state in ("completed", "stopped") for state in states):
            return states[0]
        return "running or killed" if self.lines or states else "not started"

    def points(self, kind: str, key: str) -> Points:
        """(step, value) of the finite values under `key`."""
        pairs = ((number(line.get("step")), number(line.get(key))) for line in self.of(kind))
        return [(step, value) for step, value in pairs if step is not None and value is not None]


def number(value: Any) -> float | None:
    """A finite number, or None for anything else."""
    if isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value):
        return float(value)
    return None


def read_record(run_dir: Path) -> Record:
    """Everything that can be read; what is missing or broken is left empty. Raises nothing."""
    lines, unread = _json_lines(run_dir / "metrics.jsonl")
    lines = _without_lost(lines)
    run = _run(run_dir / "spec.resolved.json")
    statuses = [_json(path) for path in sorted((run_dir / "status").glob("rank-*.json"))]
    findings = _json(run_dir / "findings.json").get("findings")
    return Record(
        name=run.name if run else run_dir.resolve().name,
        lines=lines,
        unread=unread,
        plan=_plan(run_dir, run, lines),
        statuses=tuple(status for status in statuses if status),
        findings=tuple(f for f in findings if isinstance(f, dict)) if isinstance(findings, list) else (),
        run=run,
        spec_text=_text(run_dir / "spec.yaml"),
        config_text=_text(run_dir / "ds_config.json"),
        sample=_text(run_dir / "sample.txt"),
    )


def _without_lost(lines: Lines) -> Lines:
    """Without what was trained and lost: above a line `restart`, steps after the checkpoint that was gone on from."""
    kept: list[Mapping[str, Any]] = []
    for line in lines:
        step = number(line.get("step"))
        if line.get("type") == "restart" and step is not None:
            kept = [k for k in kept if k.get("type") not in _BY_STEP or (number(k.get("step")) or 0) <= step]
        kept.append(line)
    return tuple(kept)


def _plan(run_dir: Path, run: Run | None, lines: Lines) -> Mapping[str, Any]:
    """The plan that was made before the run; where none was kept, or it was for a device of unknown kind and the run
    had none but the CPU, the same arithmetic again.
    """
    kept = _json(run_dir / "plan.json")
    steps = [line for line in lines if line.get("type") == "step"]
    on_cpu = bool(steps) and not any("memory_gpu_peak_bytes" in line for line in steps)
    usable = isinstance(kept.get("rows"), list) and not (on_cpu and kept.get("device") is None)
    if usable or run is None:
        return kept
    return make_plan(run, run_dir, "cpu" if on_cpu else None).to_json()


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _json(path: Path) -> dict[str, Any]:
    try:
        body = json.loads(_text(path) or "{}")
    except ValueError:
        return {}
    return body if isinstance(body, dict) else {}


def _json_lines(path: Path) -> tuple[Lines, int]:
    lines, unread = [], 0
    for text in _text(path).splitlines():
        if not text.strip():
            continue
        try:
            body = json.loads(text)
        except ValueError:
            body = None
        if isinstance(body, dict):
            lines.append(body)
        else:
            unread += 1
    return tuple(lines), unread


def _run(path: Path) -> Run | None:
    try:
        return Run.from_json(_json(path))
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
