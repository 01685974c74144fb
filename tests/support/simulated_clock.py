# SPDX-License-Identifier: Apache-2.0
"""Answers of a simulation's clock, made up."""

from __future__ import annotations

from typing import Any


def segment(phase: str, seconds: float, **kinds: tuple[float, float]) -> dict[str, Any]:
    """Of each kind (underscores are spaces) busy and exposed seconds."""
    names = {name.replace("_", " "): times for name, times in kinds.items()}
    return {
        "phase": phase,
        "seconds": seconds,
        "busy": {name: busy for name, (busy, _) in names.items()},
        "exposed": {name: exposed for name, (_, exposed) in names.items()},
    }


def result_of(factor: float = 1.0) -> dict[str, Any]:
    """Two micro-batches and a step."""
    one, two = factor, 2 * factor
    segments = [
        segment("forward", 2.5 * one, compute=(two, two), host_to_device=(one, 0.5 * one)),
        segment("backward", 4 * one, compute=(4 * one, 4 * one)),
        segment("forward", 3 * one, compute=(two, two), host_to_device=(one, one)),
        segment("backward", 5 * one, compute=(4 * one, 4 * one), reduce=(two, one)),
        segment("step", 10 * one, CPU_optimizer=(9 * one, 9 * one)),
    ]
    return {"clock": {"segments": segments}}
