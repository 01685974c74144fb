# SPDX-License-Identifier: Apache-2.0
"""Causes of slowness as text, for the report and for the end of a launch."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from harness.plan.planner import Plan
from harness.slowness import SlowdownReport, SlownessReport
from harness.slowness.plan_prediction import PlanPrediction
from harness.slowness.run_measurements import SettingChange
from harness.units import format_bytes, format_seconds


def format_headline(report: SlowdownReport) -> str:
    """`waiting for data: 35% of the step`."""
    how = ", as planned" if report.slowdown.is_planned else ""
    return f"{report.slowdown.title}: {100 * report.slowdown.share:.0f}% of the step{how}"


def format_settings(sets: Mapping[str, Any]) -> str:
    """The keys in the spec's notation, and the removed ones."""
    values = [f"`{key}: {json.dumps(value)}`" for key, value in sets.items() if value is not None]
    gone = [f"`{key}`" for key, value in sets.items() if value is None]
    return ", ".join([*values, *([f"without {' and '.join(gone)}"] if gone else [])])


def format_setting(setting: SettingChange) -> str:
    """The setting to try, with its keys."""
    effect = f" (changes what is trained: {setting.effect})" if setting.effect else ""
    return f"{setting.description}: {format_settings(setting.sets)}{effect}"


def format_prediction(prediction: PlanPrediction | None) -> str:
    """The setting's plan: time where it plans time, memory, and whether it fits."""
    if prediction is None or prediction.after is None:
        return "this run has no plan"
    before, after = prediction.before, prediction.after
    parts = [_format_time_change(before, after), *_memory_changes(before, after)]
    fits = {True: "fits", False: "does not fit, as before", None: ""}[after.fit.verdict]
    return "the plan: " + ", ".join(part for part in (*parts, fits) if part)


def _format_time_change(before: Plan, after: Plan) -> str:
    if before.time is None or after.time is None:
        return "no time for this device"
    old, new = before.time, after.time
    if before.settings and after.settings and before.settings.tokens_per_step != after.settings.tokens_per_step:
        faster = new.tokens_per_second / old.tokens_per_second - 1
        return f"{old.tokens_per_second:,.0f} tokens/s become {new.tokens_per_second:,.0f} ({100 * faster:+.0f}%)"
    if abs(new.seconds / old.seconds - 1) < 0.005:
        return f"a step stays at {format_seconds(old.seconds)}, no gain expected"
    change = 100 * (new.seconds / old.seconds - 1)
    return f"a step of {format_seconds(old.seconds)} becomes {format_seconds(new.seconds)} ({change:+.0f}%)"


def _memory_changes(before: Plan, after: Plan) -> list[str]:
    if before.memory is None or after.memory is None:
        return []
    old, new = before.memory, after.memory
    pairs = [] if new.pooled else [("GPU", old.gpu_peak, new.gpu_peak)]
    pairs += [("host", old.host_peak, new.host_peak), ("NVMe", old.nvme_bytes, new.nvme_bytes)]
    return [f"{name} {_format_bytes_change(a, b)}" for name, a, b in pairs if a or b]


def _format_bytes_change(old: int, new: int) -> str:
    if abs(new - old) <= 0.01 * max(old, new):
        return format_bytes(new)
    return f"{format_bytes(old)} -> {format_bytes(new)}"


def summary_lines(diagnosis: SlownessReport) -> list[str]:
    """For the end of a launch: the costliest cause, and the best of its settings."""
    if not diagnosis.slowdowns:
        return []
    worst = diagnosis.slowdowns[0]
    lines = [format_headline(worst)]
    if worst.settings:
        setting, prediction = worst.settings[0]
        lines.append(f"try {format_settings(setting.sets)}; {format_prediction(prediction)}")
    elif worst.slowdown.advice:
        lines.append(worst.slowdown.advice[0])
    return lines
