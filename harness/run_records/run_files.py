# SPDX-License-Identifier: Apache-2.0
"""Tolerant readers of the files of a run directory, which may be missing, torn or foreign. They raise nothing."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Iterator, Mapping
from heapq import heappop, heappush
from itertools import compress
from pathlib import Path
from typing import Any, BinaryIO

from harness import input_limits
from harness.file_io import open_regular, parse_json, read_regular
from harness.units import finite_number

METRICS = "metrics.jsonl"
Line = Mapping[str, Any]
Lines = tuple[Line, ...]


def text_of(path: Path) -> str:
    """The text of a file; empty where it is missing or unreadable."""
    return read_text(path)[0]


def read_text(path: Path) -> tuple[str, str]:
    """The text of a file, and the reason that it cannot be read; both empty where there is no file. It follows no link:
    a foreign run directory must not bring a file of this machine into a report.
    """
    try:
        return read_regular(path, input_limits.RUN_FILE, follow=False).decode("utf-8", "replace"), ""
    except (OSError, ValueError) as error:
        return "", _describe_error(error)


def json_of(path: Path) -> dict[str, Any]:
    """The object in a JSON file; empty if there is none."""
    return read_json(path)[0]


def read_json(path: Path) -> tuple[dict[str, Any], str]:
    """The object in a JSON file, and the reason that it cannot be read; both empty where there is no file."""
    text, reason = read_text(path)
    if reason or not path.exists():
        return {}, reason
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
    """The objects of JSON lines, and the number of other lines, such as a killed run's last one."""
    objects, unread = [], 0
    for text in lines:
        if not text.strip():
            continue
        body = parse_object(text)
        if body is None:
            unread += 1
        else:
            objects.append(body)
    return tuple(objects), unread


def read_metrics(run_dir: Path) -> tuple[Lines, int, str]:
    """All of metrics.jsonl, the number of its unread lines, and the reason that it cannot be read."""
    try:
        with open_regular(run_dir / METRICS, follow=False) as file:
            end = _LineReader(file)
            lines, unread = parse_json_lines(end)
            return lines, unread, end.reason
    except OSError as error:
        return (), 0, _describe_error(error)


class _LineReader:
    """The lines of a file up to the first that no rank writes; then `reason` says what was left out."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.reason = ""

    def __iter__(self) -> Iterator[str]:
        count = size = 0
        while line := self._file.readline(input_limits.RUN_LINE):
            count, size = count + 1, size + len(line)
            if len(line) == input_limits.RUN_LINE:
                self.reason = f"all from line {count:,} on, which is longer than {input_limits.RUN_LINE >> 20} MiB"
                return
            if count > input_limits.METRICS_LINES or size > input_limits.METRICS:
                self.reason = f"all from line {count:,} on: no run writes that many"
                return
            yield line.decode("utf-8", "replace")


def read_metrics_ends(run_dir: Path, size: int = 1 << 17) -> tuple[Lines, str]:
    """The first and the last lines of metrics.jsonl, about `size` bytes of each: enough for a list of many runs; and
    the reason that it cannot be read.
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
    """The lines without lost steps, and the number of lost steps.

    A line `restart` has the step from which the run resumed, a second line `run` its start; without either, a repeated
    step marks the restart. Steps and evaluations of earlier lines after that step are lost.
    """
    is_current: list[bool] = []
    by_step: list[tuple[float, int]] = []  # a heap: a foreign file may have as many restarts as steps
    last, lost = 0.0, 0
    for number, line in enumerate(lines):
        kind, step = line.get("type"), finite_number(line.get("step"))
        start = finite_number(line.get("start_step")) if kind == "run" else step if kind == "restart" else None
        if start is None and kind == "step" and step is not None and step <= last:
            start = step - 1
        if start is not None and start < last:
            while by_step and -by_step[0][0] > start:
                lost_number = heappop(by_step)[1]
                is_current[lost_number] = False
                lost += lines[lost_number].get("type") == "step"
            last = start
        if kind == "step" and step is not None:
            last = step
        is_current.append(True)
        if str(kind) not in _EVENT_TYPES:
            heappush(by_step, (-(step or 0.0), number))
    return tuple(compress(lines, is_current)), lost


_EVENT_TYPES = {"run", "restart", "end", "stop", "save", "save_failed", "upload", "upload_failed", "rows_dropped"}
"""Types of lines that stay true although a restart has repeated the steps around them."""
