# SPDX-License-Identifier: Apache-2.0
"""Hours and money of a whole run as ranges, from the range of a step's time; deadlines. Arithmetic only."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from harness.plan.plan_usage import usage_error
from harness.plan.settings.plan_settings import PlanSettings
from harness.plan.time.step_time import StepTime

DeadlineAnswer = Literal["met", "at risk", "missed"]
_UNITS = {"m": 60, "min": 60, "h": 3600, "d": 86400, "w": 604800}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(min|m|h|d|w)")
_MAX_SECONDS = 100 * 366 * 86400.0


@dataclass(frozen=True, slots=True)
class CostRange:
    """Hours, GPU hours and money of a run of `tokens`: the estimate, and (least, most) on a fast and a slow machine."""

    tokens: float
    hours: float
    hours_range: tuple[float, float]
    gpu_hours: float
    gpu_hours_range: tuple[float, float]
    money: float | None
    money_range: tuple[float, float] | None


def cost_range(
    tokens: float, time: StepTime, settings: PlanSettings, lost_share: float, price: float | None
) -> CostRange:
    """`lost_share`: share of time that checkpoints and failures take; `price`: money a GPU and hour."""
    steps = tokens / time.tokens_per_step / (1 - min(lost_share, 0.99))
    hours = steps * time.seconds / 3600
    least, most = (steps * seconds / 3600 for seconds in time.range)
    gpus = settings.world_size
    gpu_hours, gpu_hours_range = hours * gpus, (least * gpus, most * gpus)
    money = None if price is None else gpu_hours * price
    money_range = None if price is None else (gpu_hours_range[0] * price, gpu_hours_range[1] * price)
    return CostRange(tokens, hours, (least, most), gpu_hours, gpu_hours_range, money, money_range)


def check_deadline(hours_range: tuple[float, float], deadline: float) -> DeadlineAnswer:
    """`met`: a slow machine meets it, too; `at risk`: a fast one does, a slow one does not. `deadline` in seconds."""
    least, most = (hours * 3600 for hours in hours_range)
    return "met" if most <= deadline else "at risk" if least <= deadline else "missed"


def parse_deadline(text: str) -> float:
    """Seconds from `48h`, `90min`, `3d` or `2w`. Raises UserError for anything else."""
    match = _DURATION.fullmatch(text.strip().lower())
    seconds = float(match[1]) * _UNITS[match[2]] if match else 0.0
    if not 0 < seconds <= _MAX_SECONDS:
        message = f"`--deadline {text}` is no length of time"
        raise usage_error(message, "give it with its unit, such as `48h`, `90min` or `3d`")
    return seconds
