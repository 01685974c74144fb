# SPDX-License-Identifier: Apache-2.0
"""The whole model from two simulations with fewer layers: what a layer adds is the difference between them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from harness.plan.simulation.comparison import ROUNDING

_TOLERANCE = 0.01


def extrapolate_layers(
    small: Mapping[str, Any], large: Mapping[str, Any], layers: tuple[int, int, int], rounding: int
) -> dict[str, Any]:
    """The result for `layers[2]` layers, from those of `layers[0]` and `layers[1]`, by a straight line. Bytes of a line
    of     code that a layer makes smaller stay above 0. Failures are those of the larger one.

    `is_straight_line` of the result is False where the lines of a peak do not add up to it: then the peaks of the two
    are different moments, and more layers are needed. Page-locked blocks are rounded to powers of two, which is no
    straight line: `rounding` bytes are the plan's.
    """
    few, more, whole = layers

    def extend(a: float, b: float) -> int:
        return max(0, round(b + (b - a) * (whole - more) / (more - few)))

    result = {**large}
    for key in ("peaks", "states", "collectives", "copies", "gathers", "disk"):
        result[key] = _extend_values(
            _without_rounding(small.get(key, {})), _without_rounding(large.get(key, {})), extend
        )
    result["is_straight_line"] = all(
        abs(sum(peak["holders"].values()) - peak["bytes"]) <= _TOLERANCE * peak["bytes"]
        for peaks in result["peaks"].values()
        for peak in peaks.values()
    )
    for peaks in result["peaks"].values():
        if rounding and "cpu" in peaks:
            peaks["cpu"]["bytes"] += rounding
            peaks["cpu"]["holders"][ROUNDING] = rounding
    return result


def _without_rounding(value: Any) -> Any:
    """The same values, and peaks without the rounding of page-locked blocks."""
    if not isinstance(value, Mapping):
        return value
    if "holders" in value:
        holders = {line: size for line, size in value["holders"].items() if line != ROUNDING}
        return {"bytes": value["bytes"] - value["holders"].get(ROUNDING, 0), "holders": holders}
    return {key: _without_rounding(inner) for key, inner in value.items()}


def _extend_values(small: Any, large: Any, extend: Callable[[float, float], int]) -> Any:
    if isinstance(large, Mapping):
        other = small if isinstance(small, Mapping) else {}
        return {key: _extend_values(other.get(key, 0), value, extend) for key, value in large.items()}
    if isinstance(large, int | float):
        return extend(small if isinstance(small, int | float) else 0, large)
    return large
