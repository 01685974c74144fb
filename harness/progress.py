# SPDX-License-Identifier: Apache-2.0
"""The progress of a run, from a step's line in metrics.jsonl: for a terminal, a log or a program. Prints nothing.

Imports no other layer, since ranks and supervisor use it.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from harness.units import finite_number, format_bytes, format_count, format_seconds

_PLAIN_EVERY_SECONDS = 10.0
_PLAIN_EVERY_SHARE = 0.1


VERIFYING_EXPORT = "verifying the export: its logits against the checkpoint's"
GENERATING_SAMPLE = "generating the sample"
EXPORT_PHASES = (VERIFYING_EXPORT, GENERATING_SAMPLE)
"""Lines that an export prints when it begins to do this; the launcher shows them."""
RANK_STATUS = "harness-rank-status: "
"""Before its status as JSON in a line of output, where a rank cannot write the file: the supervisor reads it there."""
START_UP = (
    "starting Python, torch and DeepSpeed",
    "waiting for the other ranks",
    "loading the tokenizer",
    "preparing the data",
    "building the model",
    "building the engine",
    "loading the checkpoint",
    "taking the first step",
)
"""The phases of a rank before its first step is done, in this order; the first before it writes a status."""


@dataclass(slots=True)
class RunProgress:
    """The progress of a run since its last start: seconds left by the clock, saves and evaluations included, and the
    next checkpoint. `save_steps`: `checkpoint.save_steps`.
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
        num_done = step - self.start_step
        if num_done <= 0:
            return None
        return (time.monotonic() - self.start_time) / num_done * max(0, self.total_steps - step)

    def next_save(self, step: int) -> int | None:
        """The step of the next checkpoint; None if there is none."""
        if step >= self.total_steps:
            return None
        next_step = (step // self.save_steps + 1) * self.save_steps if self.save_steps else self.total_steps + 1
        if next_step <= self.total_steps:
            return next_step
        return self.total_steps if self.save_at_end else None

    def should_log(self, step: int) -> bool:
        """Should a log get a line? Every tenth of the run, every 10 seconds, and at the end."""
        now = time.monotonic()
        if not (
            step - max(self.logged_step, self.start_step) >= self.total_steps * _PLAIN_EVERY_SHARE
            or now - max(self.logged_at, self.start_time) >= _PLAIN_EVERY_SECONDS
            or step == self.total_steps
        ):
            return False
        self.logged_at, self.logged_step = now, step
        return True


def format_figures(row: Mapping[str, Any], progress: RunProgress) -> list[str]:
    """The figures of a step, the most important first, without those that were not recorded."""
    step = int(finite_number(row.get("step")) or 0)
    loss, tokens_per_second, mfu = (
        finite_number(row.get("loss")),
        finite_number(row.get("tokens_per_second")),
        finite_number(row.get("mfu")),
    )
    seconds_left, next_save = progress.seconds_left(step), progress.next_save(step)
    figures = [
        "loss none" if loss is None else f"loss {loss:.3f}",
        f"{format_count(tokens_per_second)} tokens/s" if tokens_per_second else "",
        f"{format_seconds(seconds_left)} left" if seconds_left else "",  # the last save and evaluation may follow
        f"MFU {100 * mfu:.1f}%" if mfu is not None else "",
        _format_memory(row),
        f"saves at {next_save}" if next_save is not None else "",
    ]
    return [figure for figure in figures if figure]


def _format_memory(row: Mapping[str, Any]) -> str:
    """The memory of the device, else of rank 0's process."""
    for key, name in (("memory_gpu_peak_bytes", "GPU"), ("memory_host_bytes", "host")):
        value = finite_number(row.get(key))
        if value is not None:
            return f"{name} {format_bytes(value)}"
    return ""


def format_plain(row: Mapping[str, Any], progress: RunProgress) -> str:
    """`step 12/200  loss 3.012  1.45 k tokens/s  2 min 10 s left  MFU 38.1%  GPU 33.00 GiB  saves at 50`."""
    return "  ".join([f"step {row.get('step')}/{progress.total_steps}", *format_figures(row, progress)])


def format_to_width(row: Mapping[str, Any], progress: RunProgress, width: int) -> str:
    """As many of the figures as fit into a line of this width, behind a bar."""
    text = ""
    for figure in format_figures(row, progress):
        longer = f"{text}  {figure}" if text else figure
        if len(longer) > width:
            break
        text = longer
    return text


def to_json_row(row: Mapping[str, Any], progress: RunProgress) -> dict[str, Any]:
    """The line itself, with the total of steps, the next save and the seconds left."""
    step = int(finite_number(row.get("step")) or 0)
    seconds_left = progress.seconds_left(step)
    return {
        **row,
        "total_steps": progress.total_steps,
        "next_save": progress.next_save(step),
        "seconds_left": None if seconds_left is None else round(seconds_left, 1),
    }
