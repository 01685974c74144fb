"""Files of a run directory that may be missing, torn, or somebody else's: what can be read of them. Raises nothing."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from harness.file_io import open_regular, parse_json, read_regular

METRICS = "metrics.jsonl"
Line = Mapping[str, Any]
Lines = tuple[Line, ...]
_MAX_NUMBER = 1e100
_MAX_BYTES = 64 * 2**20
"""Bytes of a file that is read whole."""
_MAX_LINE_BYTES = 16 * 2**20
"""Bytes of a line of metrics.jsonl; one of `ranks` with 100,000 ranks has five million."""


def finite_number(value: Any) -> float | None:
    """A number that can have been measured, or None for anything else: sums and shares of such are finite too."""
    usable = isinstance(value, (int, float)) and not isinstance(value, bool) and -_MAX_NUMBER < value < _MAX_NUMBER
    return float(value) if usable else None


def text_of(path: Path) -> str:
    """The text of a file; empty where there is none, or none that may be read."""
    return read_text(path)[0]


def read_text(path: Path) -> tuple[str, str]:
    """The text of a file, and why it cannot be had; both empty where there is no file. Links are not followed: who
    made a run directory must not choose what its reader's report shows.
    """
    try:
        return read_regular(path, _MAX_BYTES, follow=False).decode("utf-8", "replace"), ""
    except (OSError, ValueError) as error:
        return "", _describe_error(error)


def json_of(path: Path) -> dict[str, Any]:
    """The object in a JSON file; empty where there is none."""
    return read_json(path)[0]


def read_json(path: Path) -> tuple[dict[str, Any], str]:
    """The object in a JSON file, and why it cannot be had; both empty where there is no file."""
    text, why = read_text(path)
    if why or not path.exists():
        return {}, why
    body = parse_object(text)
    return ({}, "it is not a JSON object") if body is None else (body, "")


def _describe_error(error: OSError | ValueError) -> str:
    if isinstance(error, FileNotFoundError):
        return ""
    if isinstance(error, OSError):
        return "it is a link" if error.errno == errno.ELOOP else (error.strerror or str(error)).lower()
    return str(error)


def parse_object(text: str) -> dict[str, Any] | None:
    """One JSON object, or None for any other text."""
    try:
        body = parse_json(text)
    except ValueError:
        return None
    return body if isinstance(body, dict) else None


def parse_json_lines(lines: Iterable[str]) -> tuple[Lines, int]:
    """The objects of JSON lines, and how many lines are none: a killed run's last one, somebody's notes."""
    found, unread = [], 0
    for text in lines:
        if not text.strip():
            continue
        body = parse_object(text)
        if body is None:
            unread += 1
        else:
            found.append(body)
    return tuple(found), unread


def read_metrics(run_dir: Path) -> tuple[Lines, int, str]:
    """All of metrics.jsonl, how many of its lines are unread, and why it cannot be read."""
    try:
        with open_regular(run_dir / METRICS, follow=False) as file:
            return (*parse_json_lines(_iter_lines(file)), "")
    except OSError as error:
        return (), 0, _describe_error(error)


def _iter_lines(file: BinaryIO) -> Iterator[str]:
    """One after the other; what is longer than any line comes in pieces, of which none is a JSON object."""
    while line := file.readline(_MAX_LINE_BYTES):
        yield line.decode("utf-8", "replace")


def read_metrics_ends(run_dir: Path, size: int = 1 << 17) -> tuple[Lines, str]:
    """The first and the last lines of metrics.jsonl, about `size` bytes of each: enough for a list of many runs; and
    why it cannot be read.
    """
    try:
        with open_regular(run_dir / METRICS, follow=False) as file:
            head = file.read(size)
            end = file.seek(0, os.SEEK_END)
            if end <= size:
                return parse_json_lines(head.decode("utf-8", "replace").split("\n"))[0], ""
            file.seek(max(size, end - size))
            tail = file.read(size)
    except OSError as error:
        return (), _describe_error(error)
    first = head.decode("utf-8", "replace").split("\n")[:-1]
    last = tail.decode("utf-8", "replace").split("\n")[1:]
    return parse_json_lines([*first, *last])[0], ""


def drop_lost_steps(lines: Lines) -> tuple[Lines, int]:
    """Without what was trained and lost, and how many steps that are.

    A line `restart` says from which step the run went on, a second line `run` where it started; where neither stands, a
    step that comes again does. Of what was said before, steps and evaluations after that one are left out.
    """
    kept: list[Line] = []
    last, lost = 0.0, 0
    for line in lines:
        kind, step = line.get("type"), finite_number(line.get("step"))
        start = finite_number(line.get("start_step")) if kind == "run" else step if kind == "restart" else None
        if start is None and kind == "step" and step is not None and step <= last:
            start = step - 1
        if start is not None and start < last:
            before, kept = kept, [k for k in kept if not _is_lost(k, start)]
            lost += sum(k.get("type") == "step" for k in before) - sum(k.get("type") == "step" for k in kept)
            last = start
        if kind == "step" and step is not None:
            last = step
        kept.append(line)
    return tuple(kept), lost


def _is_lost(line: Line, step: float) -> bool:
    return str(line.get("type")) not in _EVENT_TYPES and (finite_number(line.get("step")) or 0) > step


_EVENT_TYPES = {"run", "restart", "end", "stop", "save", "save_failed"}
"""Lines that tell what happened, and stay true although the steps around them were taken again."""
