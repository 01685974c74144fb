# SPDX-License-Identifier: Apache-2.0
"""Dumps of torch's flight recorder -> the collective that some ranks never joined, or in which they disagree.

torch writes one file per rank when a collective times out (`TORCH_FR_BUFFER_SIZE`): a pickle, or JSON. A pickle can
call any function. This reader allows no calls: only containers, texts, numbers, booleans and None. Containers that hold
each other many times over are small in a pickle and endless as text, so only texts and numbers are read out of them.
"""

from __future__ import annotations

import io
import json
import pickle
import re
import resource
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from harness.diagnosis.diagnosis_types import Frame

MAX_DUMP_BYTES = 64 << 20
_SPARE_BYTES, _BYTES_OF_OBJECTS = 256 << 20, 24
"""Memory for a dump, and for each byte of its pickle."""
_MAX_TEXT, _MAX_INPUTS, _MAX_FRAMES = 300, 64, 30
_RANK_AT_END = re.compile(r"(\d{1,6})(?:\.\w{1,6})*$")
_SHAPED = frozenset({"all_reduce", "allreduce", "all_gather", "_all_gather_base", "_allgather_base", "broadcast"})
"""Collectives whose inputs have the same number of elements on all ranks."""
_SAME_SHAPE = _SHAPED | {"reduce", "reduce_scatter", "_reduce_scatter_base"}
_TORCH_FILE = re.compile(r"/torch/|/deepspeed/comm/")


@dataclass(frozen=True, slots=True)
class CollectiveCall:
    """One call of a collective. `group` is the description of its process group, `types` and `sizes` are those of the
    inputs; `frames`, outermost first, are kept for calls that did not end and for the last call of a group.
    """

    operation: str = "a collective"
    group: str = ""
    types: str = "none"
    sizes: str = "nothing"
    is_completed: bool = False
    frames: tuple[Frame, ...] = ()


_NO_CALL = CollectiveCall()


@dataclass(frozen=True, slots=True)
class FlightDump:
    """One rank's dump: its process groups (name -> ranks), and the collectives of each by sequence number."""

    rank: int
    groups: Mapping[str, tuple[int, ...]]
    collectives: Mapping[str, Mapping[int, CollectiveCall]]
    enqueued: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class StuckCollective:
    """A collective that cannot end. `missing` never joined it, `waiting` did; where all joined, `disagreement` says in
    what they differ. `frames` are those of a waiting rank, `last` what a missing rank had called last.
    """

    group: str
    number: int
    operation: str
    size: str
    missing: tuple[int, ...] = ()
    waiting: tuple[int, ...] = ()
    without_dump: tuple[int, ...] = ()
    disagreement: str = ""
    last: str = ""
    frames: tuple[Frame, ...] = field(default_factory=tuple)


class _PlainUnpickler(pickle.Unpickler):
    """Unpickles no classes and no functions."""

    def find_class(self, module_name: str, global_name: str, /) -> Any:
        """Refuse every name."""
        raise pickle.UnpicklingError(f"it names `{module_name}.{global_name}`, which no flight recorder writes")


def is_flight_dump(head: bytes) -> bool:
    """Do the first bytes look like a dump?"""
    start = head.lstrip()
    if start.startswith(b"{"):
        return b'"collective_seq_id"' in head or b'"comm_lib_version"' in head or b'"pg_config"' in head
    words = (b"pg_config", b"comm_lib_version", b"nccl_version", b"collective_seq_id", b"entries")
    return head[:1] == b"\x80" and any(word in head for word in words)


def read_flight_dump(data: bytes, name: str, index: int) -> FlightDump:
    """Parse a dump. `index` is the rank where the name has none. Raises ValueError with the reason where it is none."""
    if len(data) > MAX_DUMP_BYTES:
        raise ValueError(f"the dump is larger than {MAX_DUMP_BYTES >> 20} MiB")
    try:
        value = json.loads(data) if data.lstrip().startswith(b"{") else _unpickle(data)
        match = _RANK_AT_END.search(name)
        return _parse_dump(value, int(match[1]) if match else index)
    except (MemoryError, RecursionError):
        raise ValueError("the dump is nested too deeply or too large") from None
    except Exception as error:  # a damaged pickle raises almost anything
        raise ValueError(f"the dump is damaged or was written by another program: {error}") from None


def _unpickle(data: bytes) -> Any:
    """The value of a pickle, read with a memory limit of a few times its size: a dozen bytes can ask for 32 GiB.

    Raises MemoryError, and whatever a damaged pickle raises.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0]) * resource.getpagesize()
    limit = used + _SPARE_BYTES + _BYTES_OF_OBJECTS * len(data)
    if soft != resource.RLIM_INFINITY and soft <= limit:
        return _PlainUnpickler(io.BytesIO(data)).load()
    resource.setrlimit(resource.RLIMIT_AS, (limit, hard))
    try:
        return _PlainUnpickler(io.BytesIO(data)).load()
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def _parse_dump(value: Any, rank: int) -> FlightDump:
    entries: dict[str, dict[int, Mapping[str, Any]]] = defaultdict(dict)
    for entry in value["entries"]:
        if not entry.get("is_p2p"):
            group = _text(entry["process_group"][0])
            entries[group][_parse_count(entry.get("collective_seq_id", entry.get("seq_id", 0)))] = entry
    enqueued = {group: max(numbers) for group, numbers in entries.items()}
    collectives = {
        group: {number: _parse_call(entry, is_last=number == enqueued[group]) for number, entry in calls.items()}
        for group, calls in entries.items()
    }
    groups = {
        _text(name): _parse_ranks(group.get("ranks")) for name, group in dict(value.get("pg_config") or {}).items()
    }
    return FlightDump(rank, groups, collectives, enqueued)


def _parse_call(entry: Mapping[str, Any], *, is_last: bool) -> CollectiveCall:
    names = list(entry.get("process_group") or ())[:2]
    sizes = ["x".join(map(_text, size[:8])) or "a number" for size in (entry.get("input_sizes") or ())[:_MAX_INPUTS]]
    is_completed = (
        entry.get("state") == "completed"
        or bool(entry.get("time_discovered_completed_ns"))
        or (bool(entry.get("retired")) and entry.get("state") != "started")
    )
    return CollectiveCall(
        _text(entry.get("profiling_name")).partition(":")[2] or "a collective",
        next((text for name in reversed(names) if (text := _text(name))), ""),
        ", ".join(map(_text, (entry.get("input_dtypes") or ())[:_MAX_INPUTS])) or "none",
        ", ".join(sizes) or "nothing",
        is_completed,
        () if is_completed and not is_last else _parse_frames(entry.get("frames") or ()),
    )


def _parse_frames(frames: Sequence[Mapping[str, Any]]) -> tuple[Frame, ...]:
    """The frames of the call, outermost first, as tracebacks have them."""
    parsed = [
        Frame(_text(frame.get("filename")), _parse_count(frame.get("line") or 0), _text(frame.get("name")))
        for frame in frames[:_MAX_FRAMES]
    ]
    return tuple(reversed(parsed))


def _parse_count(value: Any) -> int:
    """A number that fits 64 bits. Raises ValueError for others: Python prints no number of many thousand digits."""
    number = int(value)
    if abs(number) >= 1 << 63:
        raise ValueError("a number in it is larger than any count")
    return number


def _parse_ranks(value: Any) -> tuple[int, ...]:
    """The ranks of a group: torch writes the text of a list, other programs a list."""
    if isinstance(value, str):
        return tuple(int(number) for number in re.findall(r"(?<!\d)\d{1,6}(?!\d)", value))
    return tuple(n for n in value if isinstance(n, int) and abs(n) < 1 << 63) if isinstance(value, list | tuple) else ()


def _text(value: Any) -> str:
    """A text or number of a dump as text; empty for anything else."""
    if isinstance(value, str):
        return sys.intern(value[:_MAX_TEXT])
    return str(value) if isinstance(value, int) and abs(value) < 1 << 63 else ""


def find_stuck_collectives(dumps: Sequence[FlightDump]) -> list[StuckCollective]:
    """The collectives that cannot end, those with missing ranks first; at most one per process group."""
    by_group: dict[str, list[FlightDump]] = defaultdict(list)
    for dump in dumps:
        for group in {*dump.collectives, *dump.groups}:
            if any(group in other.collectives for other in dumps):
                by_group[group].append(dump)
    stuck = [_compare_group(group, members, dumps) for group, members in by_group.items()]
    return sorted((s for s in stuck if s is not None), key=lambda s: (not s.missing, s.number))


def _compare_group(group: str, members: Sequence[FlightDump], dumps: Sequence[FlightDump]) -> StuckCollective | None:
    known = {rank for dump in members for rank in dump.groups.get(group, ())}
    seen = {dump.rank for dump in members}
    missing_dumps = tuple(sorted(known - {dump.rank for dump in dumps}))
    enqueued = {dump.rank: dump.enqueued.get(group, 0) for dump in members if not known or dump.rank in known}
    if not enqueued or (len(enqueued) < 2 and not missing_dumps):
        return None
    last = max(enqueued.values())
    number = min(enqueued.values()) + 1 if min(enqueued.values()) < last else last
    entries = {d.rank: d.collectives[group][number] for d in members if number in d.collectives.get(group, {})}
    pending = {rank: entry for rank, entry in entries.items() if not entry.is_completed}
    missing = tuple(sorted(rank for rank, count in enqueued.items() if count < number))
    if not missing:
        return _find_disagreement(group, members, missing_dumps)
    example = next(iter((pending or entries).values()), _NO_CALL)
    behind = next(d for d in members if d.rank == missing[0] and d.rank in seen)
    previous = behind.collectives.get(group, {}).get(enqueued[missing[0]])
    last_call = _describe_call(previous) if previous is not None else ""
    stuck = _stop_at(group, number, entries, example)
    return replace(stuck, missing=missing, without_dump=missing_dumps, last=last_call)


def _stop_at(group: str, number: int, calls: Mapping[int, CollectiveCall], example: CollectiveCall) -> StuckCollective:
    """The collective in which these ranks wait, as one of them called it."""
    fields = (example.group or group, number, example.operation, example.sizes)
    return StuckCollective(*fields, waiting=tuple(sorted(calls)), frames=example.frames)


def _find_disagreement(
    group: str, members: Sequence[FlightDump], missing_dumps: tuple[int, ...]
) -> StuckCollective | None:
    """The first pending collective in which operation, type or shape differ, or that ranks without a dump miss."""
    numbers = sorted({number for dump in members for number in dump.collectives.get(group, {})})
    for number in numbers:
        entries = {d.rank: d.collectives[group][number] for d in members if number in d.collectives.get(group, {})}
        if all(entry.is_completed for entry in entries.values()):
            continue
        example = next(iter(entries.values()))
        stuck = _stop_at(group, number, entries, example)
        for name, attribute in (("operations", "operation"), ("types", "types"), ("shapes", "sizes")):
            values: dict[str, list[int]] = defaultdict(list)
            for rank, entry in sorted(entries.items()):
                values[getattr(entry, attribute)].append(rank)
            if len(values) > 1 and (name != "shapes" or example.operation in _SAME_SHAPE):
                text = "; ".join(f"{format_ranks(ranks)}: {value}" for value, ranks in values.items())
                operation = " or ".join(sorted({entry.operation for entry in entries.values()}))
                size = "" if name == "shapes" else stuck.size
                return replace(stuck, operation=operation, size=size, disagreement=f"their {name} differ: {text}")
        if missing_dumps:
            return replace(stuck, without_dump=missing_dumps)
    return None


def _describe_call(call: CollectiveCall) -> str:
    """`all_reduce at train.py:88`."""
    own = [frame for frame in call.frames if not _TORCH_FILE.search(frame.file)] or list(call.frames)
    return call.operation + (f" at {own[-1].file}:{own[-1].line}" if own else "")


def format_ranks(ranks: Sequence[int]) -> str:
    """`rank 3`, `ranks 0, 1 and 6 more`."""
    text = ", ".join(map(str, ranks[:8]))
    return f"rank{'s' if len(ranks) > 1 else ''} {text}" + (f" and {len(ranks) - 8} more" if len(ranks) > 8 else "")
