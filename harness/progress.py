"""A step in one line, from its line in metrics.jsonl: for a terminal, for a log, for a program. Prints nothing.

Below everything else, for ranks and supervisor alike.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from harness.units import format_bytes, format_count, format_seconds

_PLAIN_EVERY_SECONDS = 10.0
_PLAIN_EVERY_SHARE = 0.1


@dataclass(slots=True)
class RunProgress:
    """How far a run is, since its last start: time left by the clock, saves and evaluations counted, and the next
    checkpoint. `save_steps`: as the spec has it.
    """

    total_steps: int
    start_step: int
    save_steps: int | None = None
    save_at_end: bool = True
    start_time: float = field(default_factory=time.monotonic)
    logged_at: float = 0.0
    logged_step: int = 0

    def seconds_left(self, step: int) -> float | None:
        """Seconds; None before the first step is done."""
        done = step - self.start_step
        return (time.monotonic() - self.start_time) / done * max(0, self.total_steps - step) if done > 0 else None

    def next_save(self, step: int) -> int | None:
        """The step of the next checkpoint; None when there is none to come."""
        if step >= self.total_steps:
            return None
        due = (step // self.save_steps + 1) * self.save_steps if self.save_steps else self.total_steps + 1
        return due if due <= self.total_steps else self.total_steps if self.save_at_end else None

    def should_log(self, step: int) -> bool:
        """Whether a log gets a line: every tenth of the run, every 10 seconds, and at the end."""
        now = time.monotonic()
        if not (
            step - max(self.logged_step, self.start_step) >= self.total_steps * _PLAIN_EVERY_SHARE
            or now - max(self.logged_at, self.start_time) >= _PLAIN_EVERY_SECONDS
            or step == self.total_steps
        ):
            return False
        self.logged_at, self.logged_step = now, step
        return True


def format_figures(row: Mapping[str, Any], pace: RunProgress) -> list[str]:
    """What there is to say of a step, the most wanted first; what was not recorded is left out."""
    step = int(finite_number(row.get("step")) or 0)
    loss, speed, mfu = (
        finite_number(row.get("loss")),
        finite_number(row.get("tokens_per_second")),
        finite_number(row.get("mfu")),
    )
    left, saved = pace.seconds_left(step), pace.next_save(step)
    found = [
        "loss none" if loss is None else f"loss {loss:.3f}",
        f"{format_count(speed)} tokens/s" if speed else "",
        f"{format_seconds(left)} left" if left is not None else "",
        f"MFU {100 * mfu:.1f}%" if mfu is not None else "",
        _format_memory(row),
        f"saves at {saved}" if saved is not None else "",
    ]
    return [text for text in found if text]


def _format_memory(row: Mapping[str, Any]) -> str:
    """Of the device where there is one, else of rank 0's process."""
    for key, name in (("memory_gpu_peak_bytes", "GPU"), ("memory_host_bytes", "host")):
        value = finite_number(row.get(key))
        if value is not None:
            return f"{name} {format_bytes(value)}"
    return ""


def format_plain(row: Mapping[str, Any], pace: RunProgress) -> str:
    """`step 12/200  loss 3.012  1.45 k tokens/s  2 min 10 s left  MFU 38.1%  GPU 33.00 GiB  saves at 50`."""
    return "  ".join([f"step {row.get('step')}/{pace.total_steps}", *format_figures(row, pace)])


def format_to_width(row: Mapping[str, Any], pace: RunProgress, width: int) -> str:
    """As many of the figures as go into a line of this width, behind a bar."""
    text = ""
    for figure in format_figures(row, pace):
        longer = f"{text}  {figure}" if text else figure
        if len(longer) > width:
            break
        text = longer
    return text


def to_json_row(row: Mapping[str, Any], pace: RunProgress) -> dict[str, Any]:
    """The line itself, with what a program cannot know of it."""
    step = int(finite_number(row.get("step")) or 0)
    left = pace.seconds_left(step)
    more = {"total_steps": pace.total_steps, "next_save": pace.next_save(step)}
    return {**row, **more, "seconds_left": None if left is None else round(left, 1)}


def finite_number(value: Any) -> float | None:
    """A finite number, or None for anything else: lines come from a file."""
    if isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value):
        return float(value)
    return None
