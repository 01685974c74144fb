# SPDX-License-Identifier: Apache-2.0
"""Stacks of living processes, as py-spy and faulthandler print them -> the process outside of the collective."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from harness.diagnosis.diagnosis_types import Frame

_MAX_STACKS, _MAX_FRAMES = 4096, 60
_PROCESS = re.compile(r"^Process (?P<pid>\d+): (?P<command>.*)")
_LOCAL_RANK = re.compile(r"--local[_-]rank[= ](\d+)")
_PY_SPY_THREAD = re.compile(r'^Thread (?P<id>\d+|0x[0-9a-fA-F]+) \((?P<state>[^)]*)\)(?:: "(?P<name>[^"]*)")?')
_PY_SPY_FRAME = re.compile(r"^ {3,4}(?P<function>\S.*?) \((?P<file>[^()]+?)(?::(?P<line>\d+))?\)$")
_FAULT_THREAD = re.compile(r"^(?P<current>Current thread|Thread) 0x[0-9a-f]+ .*\(most recent call first\):")
_FAULT_FRAME = re.compile(r'^\s+File "(?P<file>[^"]+)", line (?P<line>\d+) in (?P<function>.+)$')
_COLLECTIVE_FUNCTION = re.compile(
    r"^(?:all_?reduce|all_?gather\w*|reduce_scatter\w*|broadcast\w*|_?barrier|monitored_barrier|all_to_all\w*|gather|scatter"
    r"|i?send|i?recv|reduce|inference_all_reduce|wait_for_everyone|log_dist_barrier)$"
)
_DISTRIBUTED_FILE = re.compile(r"torch/distributed/(?!elastic|run|checkpoint)|deepspeed/comm/")
_LIBRARY_FILE = re.compile(
    r"site-packages|dist-packages|/lib/python3|<frozen|^(?:torch|deepspeed|transformers|accelerate|multiprocessing)/|"
    r"^(?:threading|queue|selectors|socket|subprocess)\.py$"
)
_LOCK_FILE = re.compile(r"file_baton\.py$")
_DEVICE_WAIT = re.compile(r"^(?:synchronize|wait_stream|wait_event|item|tolist|cpu)$")


class StackPlace(NamedTuple):
    """The place of a stack: its line among all logs, its log, and the signs of progress above it."""

    line_number: int
    log_index: int
    progress: int


@dataclass(slots=True)
class ProcessStack:
    """The main thread of one process, innermost frame first."""

    pid: int | None
    rank: int | None
    local_rank: int | None
    host: str
    place: StackPlace
    frames: list[Frame] = field(default_factory=list)
    is_main: bool = False

    @property
    def kind(self) -> Literal["collective", "device", "lock", "outside"]:
        """Is it in a collective, waiting for the device or for the lock of a compiled op, or none of these?"""
        inner = self.frames[:12]
        if any(_LOCK_FILE.search(frame.file) for frame in inner[:3]):
            return "lock"
        for frame in inner:
            if _COLLECTIVE_FUNCTION.match(frame.function) and _DISTRIBUTED_FILE.search(frame.file):
                return "collective"
        if inner and _DISTRIBUTED_FILE.search(inner[0].file):
            return "collective"
        return "device" if inner and _DEVICE_WAIT.match(inner[0].function) else "outside"

    def describe(self) -> str:
        """`save (train.py:88)`: the innermost frame of the job's own files, or the innermost one."""
        own = [f for f in self.frames if not _LIBRARY_FILE.search(f.file)]
        inner = self.frames[0]
        text = f"{inner.function} ({inner.file.rsplit('/', 1)[-1]}:{inner.line})"
        if own and own[0] is not inner:
            text += f", called from {own[0].function} ({own[0].file}:{own[0].line})"
        return text


class StackTraces:
    """Collects the stacks of a job's logs. Each writer's lines are read apart from the others'."""

    def __init__(self) -> None:
        self.stacks: list[ProcessStack] = []
        self._current: dict[str, ProcessStack] = {}
        self._candidate: dict[str, list[Frame]] = {}
        self._pids: dict[str, tuple[int, int | None]] = {}

    def start_log(self) -> None:
        """Another log starts."""
        for stream in list(self._candidate):
            self._finish_thread(stream)
        self._current, self._candidate, self._pids = {}, {}, {}

    def read_line(self, text: str, stream: str, rank: int | None, host: str, place: StackPlace) -> bool:
        """Read a line. Is it one of a stack?"""
        if match := _PROCESS.match(text):
            local = _LOCAL_RANK.search(match["command"])
            self._pids[stream] = int(match["pid"]), int(local[1]) if local else None
            self._finish_thread(stream)
            self._current.pop(stream, None)
            return True
        if (match := _PY_SPY_THREAD.match(text)) or _FAULT_THREAD.match(text):
            self._finish_thread(stream)
            self._start_thread(stream, rank, host, place)
            return True
        if stream in self._candidate:
            match = _PY_SPY_FRAME.match(text) or _FAULT_FRAME.match(text)
            if match is not None and len(self._candidate[stream]) < _MAX_FRAMES:
                self._candidate[stream].append(Frame(match["file"], int(match["line"] or 0), match["function"].strip()))
            if match is not None or text.startswith("   "):
                return True
            self._finish_thread(stream)
        return False

    def _start_thread(self, stream: str, rank: int | None, host: str, place: StackPlace) -> None:
        pid, local = self._pids.get(stream, (None, None))
        current = self._current.get(stream)
        is_another = current is None or (current.is_main and pid is None)
        if is_another and len(self.stacks) < _MAX_STACKS:
            current = ProcessStack(pid, rank, local, host, place)
            self.stacks.append(current)
            self._current[stream] = current
        self._candidate[stream] = []

    def _finish_thread(self, stream: str) -> None:
        """Keep a thread's frames if it is the main one: it began in a module."""
        frames = self._candidate.pop(stream, None)
        current = self._current.get(stream)
        if not frames or current is None:
            return
        is_main = frames[-1].function.startswith("<module>") or any(f.function == "<module>" for f in frames)
        if is_main or not current.frames:
            current.frames, current.is_main = frames, is_main or current.is_main

    def finish(self) -> Sequence[ProcessStack]:
        """All stacks with frames, the last of each process."""
        for stream in list(self._candidate):
            self._finish_thread(stream)
        by_process = {
            (s.host, s.rank, s.local_rank, s.pid, s.place.line_number if s.pid is None else 0): s for s in self.stacks
        }
        return [stack for stack in by_process.values() if stack.frames]


def find_outsiders(stacks: Sequence[ProcessStack]) -> tuple[list[ProcessStack], list[ProcessStack]]:
    """(the processes outside of the collective, those in it); no outsiders if no process is in one, or if most are
    outside.
    """
    inside = [stack for stack in stacks if stack.kind == "collective"]
    outside = [stack for stack in stacks if stack.kind == "outside"]
    return (outside if inside and len(outside) <= len(inside) else []), inside
