"""Sums over the steps between two lines of metrics.jsonl, and the means that the line tells. Measures nothing."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from harness.runtime.telemetry.waiting import Seconds
from harness.runtime.telemetry.watch import Figures, Raw
from harness.runtime.telemetry.work import Amount


@dataclass(slots=True)
class Interval:
    """Sums over the steps since the line before."""

    steps: int = 0
    seconds: float = 0.0
    parts: Seconds = field(default_factory=lambda: defaultdict(float))
    loop: float = 0.0
    communication: list[tuple[float, float]] = field(default_factory=list)
    """Seconds in collectives and seconds of the step, of steps in which they were timed."""
    tokens: int = 0
    positions: int = 0
    needed: float = 0.0
    executed: float = 0.0
    six_n: float = 0.0
    io: float = 0.0
    read: int = 0
    written: int = 0
    paused: Seconds = field(default_factory=lambda: defaultdict(float))

    def add(self, raw: Raw, found: Figures, amount: Amount) -> None:
        """One more step."""
        self.steps += 1
        self.seconds += found.seconds
        for name, seconds in found.parts.items():
            self.parts[name] += seconds
        self.loop += found.loop
        if raw.measured:
            self.communication.append((sum(found.communication.values()), found.seconds))
        self.tokens, self.positions = self.tokens + amount.tokens, self.positions + amount.positions
        self.needed, self.executed = self.needed + amount.needed, self.executed + amount.executed
        self.six_n += amount.six_n
        self.io, self.read, self.written = self.io + raw.io, self.read + raw.read, self.written + raw.written


def speed(interval: Interval) -> dict[str, Any]:
    """Means a step, rounded to microseconds."""
    steps = interval.steps
    out: dict[str, Any] = {
        "tokens_per_second": round(interval.tokens / interval.seconds, 2) if interval.seconds else None,
        "steps": steps,
        "step_tokens": round(interval.tokens / steps, 2),
        "step_positions": round(interval.positions / steps, 2),
        "seconds": round(interval.seconds / steps, 6),
        **{f"seconds_{name}": round(value / steps, 6) for name, value in interval.parts.items()},
        "seconds_loop": round(interval.loop / steps, 6),
        **{f"seconds_{name}": round(value, 6) for name, value in interval.paused.items() if value},
    }
    if interval.communication:
        inside, whole = (sum(column) for column in zip(*interval.communication, strict=True))
        out["seconds_communication"] = round(inside / len(interval.communication), 6)
        out["communication_share"] = round(inside / whole, 5) if whole else 0.0
    return out


def flops(interval: Interval, world: int, peak: float | None) -> dict[str, Any]:
    """FLOPs a step over all ranks, and what part of the peak they are."""
    counts = {"flops": interval.needed, "flops_hardware": interval.executed, "flops_6n": interval.six_n}
    out: dict[str, Any] = {name: _digits(value / interval.steps) for name, value in counts.items()}
    if interval.seconds > 0:
        rate = 1 / (interval.seconds * world)
        out["device_flops_per_second"] = float(f"{interval.needed * rate:.6g}")
        if peak:
            shares = zip(("mfu", "hfu", "mfu_6n"), counts.values(), strict=True)
            out |= {name: float(f"{value * rate / peak:.5g}") for name, value in shares}
    return out


@lru_cache(maxsize=64)
def _digits(value: float) -> float:
    """Six digits are enough; rows of one length have the same operations in every step."""
    return float(f"{value:.6g}")
