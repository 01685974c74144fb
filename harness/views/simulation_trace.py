# SPDX-License-Identifier: Apache-2.0
"""The trace of a simulated step in the format of Chrome's trace events, which Perfetto reads. Counts nothing itself."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

_PHASES = "phases"
_ORDER = (_PHASES, "default", "CPU optimizer", "collectives", "disk read", "disk write")


def render_trace(trace: Mapping[str, Any], title: str) -> str:
    """JSON with a track for the phases, each stream, the collectives of each group, the CPU optimizer and the disk."""
    texts = trace["texts"]
    tracks = [_PHASES, *sorted({texts[row[0]] for row in trace["slices"]}, key=_track_order)]
    events: list[dict[str, Any]] = [
        {"ph": "M", "pid": 1, "tid": 0, "name": "process_name", "args": {"name": title}},
    ]
    for number, track in enumerate(tracks):
        events.append({"ph": "M", "pid": 1, "tid": number, "name": "thread_name", "args": {"name": track}})
        events.append({"ph": "M", "pid": 1, "tid": number, "name": "thread_sort_index", "args": {"sort_index": number}})
    events += [
        {"ph": "X", "pid": 1, "tid": 0, "name": name, "ts": start, "dur": duration}
        for name, start, duration in trace["phases"]
    ]
    numbers = {track: number for number, track in enumerate(tracks)}
    events += [
        {
            "ph": "X",
            "pid": 1,
            "tid": numbers[texts[track]],
            "name": texts[name],
            "cat": texts[kind],
            "ts": start,
            "dur": duration,
            "args": {"phase": texts[phase], "line": texts[line], "kernels": kernels},
        }
        for track, name, kind, phase, line, start, duration, kernels in trace["slices"]
    ]
    note = {"merged_below_seconds": trace["merged_below"], "of": title}
    return json.dumps({"traceEvents": events, "displayTimeUnit": "ms", "otherData": note}, separators=(",", ":"))


def _track_order(name: str) -> tuple[int, str]:
    return next((number for number, start in enumerate(_ORDER) if name.startswith(start)), len(_ORDER)), name
