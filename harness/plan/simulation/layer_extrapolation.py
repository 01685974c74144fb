# SPDX-License-Identifier: Apache-2.0
"""The whole model from two simulations with fewer layers: what a layer adds is the difference between them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from harness.plan.memory.memory_estimate import MemoryEstimate
from harness.plan.memory.memory_items import pinned_rounding_bytes
from harness.plan.simulation.comparison import ROUNDING

_NOT_SIMULATED = ("cache", "staged")
_TOLERANCE = 0.01


def extrapolate_layers(
    small: Mapping[str, Any], large: Mapping[str, Any], layers: tuple[int, int, int], rounding: int
) -> dict[str, Any]:
    """The result for `layers[2]` layers, from those of `layers[0]` and `layers[1]`, by a straight line. Bytes of a line
    of code that a layer makes smaller stay above 0. Failures are those of the larger one.

    `is_straight_line` of the result is False where the lines of a peak do not add up to it, or where a line holds a
    part of one peak and nothing of the other: then the peaks of the two are different moments, and more layers are
    needed. Page-locked blocks are rounded to powers of two, which is no straight line: `rounding` bytes are the plan's.
    """
    few, more, whole = layers

    def extend(a: float, b: float) -> int:
        return max(0, round(b + (b - a) * (whole - more) / (more - few)))

    result = {**large}
    for key in ("peaks", "states", "collectives", "copies", "gathers", "disk", "checkpoint"):
        result[key] = _extend_values(
            _without_rounding(small.get(key, {})), _without_rounding(large.get(key, {})), extend
        )
    result["clock"] = _extend_clock(small.get("clock"), large.get("clock"), (whole - more) / (more - few))
    result["is_straight_line"] = all(
        abs(sum(peak["holders"].values()) - peak["bytes"]) <= _TOLERANCE * peak["bytes"]
        for peaks in result["peaks"].values()
        for peak in peaks.values()
    ) and all(
        _is_same_moment(peak, small["peaks"].get(phase, {}).get(tier))
        for phase, peaks in large["peaks"].items()
        for tier, peak in peaks.items()
    )
    for peaks in result["peaks"].values():
        if rounding and "cpu" in peaks:
            peaks["cpu"]["bytes"] += rounding
            peaks["cpu"]["holders"][ROUNDING] = rounding
    return result


def simulated_rounding_bytes(memory: MemoryEstimate) -> int:
    """Rounding of the page-locked blocks that a simulation has: none that torch's cache keeps after they are freed, and
    none through which a save copies. 0 where nothing is rounded.
    """
    host = memory.items_of("host")
    is_rounded = any(item.kind == "rounding" for item in host)
    return pinned_rounding_bytes(item for item in host if item.kind not in _NOT_SIMULATED) if is_rounded else 0


def _is_same_moment(peak: Mapping[str, Any], other: Mapping[str, Any] | None) -> bool:
    """Do the lines of code that hold a hundredth or more of a peak hold something of the other, and the other way?"""
    pairs = ((peak, other), (other, peak)) if other is not None else ()
    return other is not None and all(
        line in there["holders"] or line == ROUNDING
        for here, there in pairs
        for line, size in here["holders"].items()
        if size > _TOLERANCE * here["bytes"]
    )


def _extend_clock(
    small: Mapping[str, Any] | None, large: Mapping[str, Any] | None, factor: float
) -> dict[str, Any] | None:
    """Seconds of each segment by a straight line; the trace is that of the larger one. None where the steps of both are
    not made of the same segments.
    """
    if small is None or large is None:
        return None
    pairs = list(zip(small["segments"], large["segments"], strict=False))
    if len(small["segments"]) != len(large["segments"]) or any(a["phase"] != b["phase"] for a, b in pairs):
        return None

    def extend(a: float, b: float) -> float:
        return max(0.0, b + (b - a) * factor)

    return {**large, "segments": [{**b, **_extend_values(_numbers(a), _numbers(b), extend)} for a, b in pairs]}


def _numbers(segment: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in segment.items() if key != "phase"}


def _without_rounding(value: Any) -> Any:
    """The same values, and peaks without the rounding of page-locked blocks."""
    if not isinstance(value, Mapping):
        return value
    if "holders" in value:
        holders = {line: size for line, size in value["holders"].items() if line != ROUNDING}
        return {"bytes": value["bytes"] - value["holders"].get(ROUNDING, 0), "holders": holders}
    return {key: _without_rounding(inner) for key, inner in value.items()}


def _extend_values(small: Any, large: Any, extend: Callable[[float, float], float]) -> Any:
    if isinstance(large, Mapping):
        other = small if isinstance(small, Mapping) else {}
        return {key: _extend_values(other.get(key, 0), value, extend) for key, value in large.items()}
    if isinstance(large, int | float):
        return extend(small if isinstance(small, int | float) else 0, large)
    return large
