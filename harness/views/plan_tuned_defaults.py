# SPDX-License-Identifier: Apache-2.0
"""The tuned defaults of a run, as a table of the plan. Decides nothing."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from harness.plan.tuned_defaults.impact import DefaultImpact
from harness.units import format_bytes, format_seconds
from harness.views.style import Style

_MIN_SECONDS = 1e-4


def render_tuned_defaults(impacts: Sequence[DefaultImpact], device: str, style: Style, width: int) -> str:
    """Each tuned default, DeepSpeed's own default, and the planned difference; `device` is the word for a GPU."""
    if not impacts:
        return ""
    heads = ("Tuned defaults", "value", "default")
    rows = [
        (
            d.tuned_default.key.removeprefix("zero_optimization."),
            _format_value(d.tuned_default.value),
            _format_value(d.tuned_default.default),
        )
        for d in impacts
    ]
    left, middle, right = (max(map(len, column)) for column in zip(heads, *rows, strict=True))
    lines = [style.paint(f"{heads[0].ljust(left)}  {heads[1].rjust(middle)}  {heads[2].rjust(right)}", "", bold=True)]
    for d, (key, value, default) in zip(impacts, rows, strict=True):
        start = f"  {key}".ljust(left) + f"  {value.rjust(middle)}  {default.rjust(right)}  "
        room = max(width - len(start), 30)
        parts = textwrap.wrap("; ".join(filter(None, (_format_impact(d, device), d.tuned_default.reason))), room)
        lines += [start + parts[0], *(" " * len(start) + part for part in parts[1:])]
    return "\n".join(line.rstrip() for line in [*lines, "`tuned_defaults: false` keeps DeepSpeed's defaults"])


def _format_value(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:,}" if isinstance(value, int) else ", ".join(value) if isinstance(value, list) else str(value)


def _format_impact(d: DefaultImpact, device: str) -> str:
    sizes = ((device, d.gpu_bytes), ("host", d.host_bytes), ("wire/step", round(d.wire_bytes)))
    effects = [f"{name} {'+' if size > 0 else '-'}{format_bytes(abs(size))}" for name, size in sizes if size]
    if d.step_seconds is not None and abs(d.step_seconds) >= _MIN_SECONDS:
        effects.append(f"step {'+' if d.step_seconds > 0 else '-'}{format_seconds(abs(d.step_seconds))}")
    return ", ".join(effects)
