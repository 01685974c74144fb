"""Files of a run directory that may be missing, torn, or somebody else's: what can be read of them. Raises nothing."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

Line = Mapping[str, Any]
Lines = tuple[Line, ...]


def number(value: Any) -> float | None:
    """A finite number, or None for anything else."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        try:
            return float(value) if math.isfinite(value) else None
        except OverflowError:
            return None
    return None


def text_of(path: Path) -> str:
    """The text of a file; empty where there is none."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def json_of(path: Path) -> dict[str, Any]:
    """The object in a JSON file; empty where there is none."""
    return parsed(text_of(path)) or {}


def parsed(text: str) -> dict[str, Any] | None:
    """One JSON object, or None for any other text."""
    try:
        body = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return body if isinstance(body, dict) else None


def json_lines(lines: Iterable[str]) -> tuple[Lines, int]:
    """The objects of JSON lines, and how many lines are none: a killed run's last one, somebody's notes."""
    found, unread = [], 0
    for text in lines:
        if not text.strip():
            continue
        body = parsed(text)
        if body is None:
            unread += 1
        else:
            found.append(body)
    return tuple(found), unread


def metrics_of(run_dir: Path) -> tuple[Lines, int]:
    """All of metrics.jsonl."""
    try:
        with (run_dir / "metrics.jsonl").open(encoding="utf-8", errors="replace") as file:
            return json_lines(file)
    except OSError:
        return (), 0


def edges_of(run_dir: Path, size: int = 1 << 17) -> Lines:
    """The first and the last lines of metrics.jsonl, about `size` bytes of each: enough for a list of many runs."""
    try:
        with (run_dir / "metrics.jsonl").open("rb") as file:
            head = file.read(size)
            end = file.seek(0, 2)
            if end <= size:
                return json_lines(head.decode("utf-8", "replace").split("\n"))[0]
            file.seek(max(size, end - size))
            tail = file.read()
    except OSError:
        return ()
    first = head.decode("utf-8", "replace").split("\n")[:-1]
    last = tail.decode("utf-8", "replace").split("\n")[1:]
    return json_lines([*first, *last])[0]


def without_lost(lines: Lines) -> tuple[Lines, int]:
    """Without what was trained and lost, and how many steps that are.

    A line `restart` says from which step the run went on, a second line `run` where it started; where neither stands, a
    step that comes again does. Of what was said before, steps and evaluations after that one are left out.
    """
    kept: list[Line] = []
    last, lost = 0.0, 0
    for line in lines:
        kind, step = line.get("type"), number(line.get("step"))
        start = number(line.get("start_step")) if kind == "run" else step if kind == "restart" else None
        if start is None and kind == "step" and step is not None and step <= last:
            start = step - 1
        if start is not None and start < last:
            before, kept = kept, [k for k in kept if not _after(k, start)]
            lost += sum(k.get("type") == "step" for k in before) - sum(k.get("type") == "step" for k in kept)
            last = start
        if kind == "step" and step is not None:
            last = step
        kept.append(line)
    return tuple(kept), lost


def _after(line: Line, step: float) -> bool:
    return line.get("type") not in _KEPT and (number(line.get("step")) or 0) > step


_KEPT = {"run", "restart", "end", "stop", "save", "save_failed"}
"""Lines that tell what happened, and stay true although the steps around them were taken again."""
