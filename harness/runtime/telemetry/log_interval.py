# SPDX-License-Identifier: Apache-2.0
"""Sums over the steps between two lines of metrics.jsonl, and their means for the line. Measures nothing."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from harness.runtime.comm_timer import SecondsBySpan
from harness.runtime.step_timer import StepTimes, StepTrace
from harness.runtime.telemetry.flops_counter import BatchCounts


@dataclass(slots=True)
class LogInterval:
    """Sums over the steps since the last line."""

    steps: int = 0
    seconds: float = 0.0
    span_seconds: SecondsBySpan = field(default_factory=lambda: defaultdict(float))
    loop_seconds: float = 0.0
    comm_samples: list[tuple[float, float]] = field(default_factory=list)
    """Seconds in collectives and seconds of the step, of steps in which they were timed."""
    tokens: int = 0
    positions: int = 0
    model_flops: float = 0.0
    hardware_flops: float = 0.0
    flops_6n: float = 0.0
    io_seconds: float = 0.0
    bytes_read: int = 0
    bytes_written: int = 0
    pause_seconds: SecondsBySpan = field(default_factory=lambda: defaultdict(float))

    def add(self, trace: StepTrace, times: StepTimes, counts: BatchCounts) -> None:
        """Add a step."""
        self.steps += 1
        self.seconds += times.seconds
        for name, seconds in times.span_seconds.items():
            self.span_seconds[name] += seconds
        self.loop_seconds += times.loop_seconds
        if trace.comm_measured:
            self.comm_samples.append((sum(times.comm_seconds.values()), times.seconds))
        self.tokens, self.positions = self.tokens + counts.tokens, self.positions + counts.positions
        self.model_flops += counts.model_flops
        self.hardware_flops += counts.hardware_flops
        self.flops_6n += counts.flops_6n
        self.io_seconds += trace.io_seconds
        self.bytes_read += trace.bytes_read
        self.bytes_written += trace.bytes_written


def throughput_fields(interval: LogInterval) -> dict[str, Any]:
    """Means per step, rounded to microseconds."""
    steps = interval.steps
    fields: dict[str, Any] = {
        "tokens_per_second": round(interval.tokens / interval.seconds, 2) if interval.seconds else None,
        "steps": steps,
        "step_tokens": round(interval.tokens / steps, 2),
        "step_positions": round(interval.positions / steps, 2),
        "seconds": round(interval.seconds / steps, 6),
        **{f"seconds_{name}": round(value / steps, 6) for name, value in interval.span_seconds.items()},
        "seconds_loop": round(interval.loop_seconds / steps, 6),
        **{f"seconds_{name}": round(value, 6) for name, value in interval.pause_seconds.items() if value},
    }
    if interval.comm_samples:
        comm_seconds, step_seconds = (sum(column) for column in zip(*interval.comm_samples, strict=True))
        fields["seconds_communication"] = round(comm_seconds / len(interval.comm_samples), 6)
        fields["communication_share"] = round(comm_seconds / step_seconds, 5) if step_seconds else 0.0
    return fields


def flops_fields(interval: LogInterval, world_size: int, peak: float | None) -> dict[str, Any]:
    """FLOPs per step over all ranks, and their share of the peak."""
    counts = {"flops": interval.model_flops, "flops_hardware": interval.hardware_flops, "flops_6n": interval.flops_6n}
    fields: dict[str, Any] = {name: _round_to_six_digits(value / interval.steps) for name, value in counts.items()}
    if interval.seconds > 0:
        rate = 1 / (interval.seconds * world_size)
        fields["device_flops_per_second"] = float(f"{interval.model_flops * rate:.6g}")
        if peak:
            shares = zip(("mfu", "hfu", "mfu_6n"), counts.values(), strict=True)
            fields |= {name: float(f"{value * rate / peak:.5g}") for name, value in shares}
    return fields


@lru_cache(maxsize=64)
def _round_to_six_digits(value: float) -> float:
    """Six digits are enough; rows of one length have the same operations in every step."""
    return float(f"{value:.6g}")
