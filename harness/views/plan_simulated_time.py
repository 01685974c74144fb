# SPDX-License-Identifier: Apache-2.0
"""Seconds of a step, planned and simulated, as text and as JSON. Counts nothing itself."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from harness.plan.simulation.simulated_time import GROUPS, TimeComparison, planned_group
from harness.units import format_seconds, pluralize
from harness.views.plan_details import format_time_part
from harness.views.plan_lines import wrap_lines
from harness.views.style import Style

NO_CLOCK = "the clock needs a known GPU, and no other stage that a pipeline would wait for"
_SHORT = 1e-3
"""Seconds: shorter work is in no line of the text."""
_ROW_NAMES = {"copies": "copies host - GPU", "host": "host alone"}


def render_simulated_time(comparison: TimeComparison | None, style: Style, width: int) -> str:
    """Both sides by kind of work, then the plan with the simulated overlap."""
    if comparison is None:
        return "\n".join(wrap_lines([f"No time: {NO_CLOCK}."], width))
    simulated = comparison.simulated
    head = f"Seconds a step of {pluralize(simulated.micro_batches, 'micro-batch')}".replace("batchs", "batches")
    lines = [
        f"{style.paint(head.ljust(34), '', bold=True)}{'planned':>12}{'simulated':>22}",
        f"{'':<18}{'busy':>12}{'not hidden':>12}{'busy':>12}{'not hidden':>12}",
    ]
    for name in GROUPS:
        planned, work = planned_group(comparison.planned, name), simulated.group(name)
        if max(planned.busy, work.busy) >= _SHORT:
            cells = "".join(f"{seconds:>12.2f}" for seconds in (planned.busy, planned.exposed, work.busy, work.exposed))
            lines.append(f"  {_ROW_NAMES.get(name, name):<16}{cells}")
    total = f"{'':>12}{comparison.planned.seconds:>12.2f}{'':>12}{simulated.seconds:>12.2f}"
    lines.append(f"  {'step':<16}{total}")
    phases = ", ".join(f"{name} {format_seconds(seconds)}" for name, seconds in simulated.phases.items())
    kinds = ", ".join(
        f"{name} {format_seconds(work.busy)} ({format_seconds(work.exposed)} not hidden)"
        for name, work in simulated.kinds.items()
        if name not in GROUPS and work.busy >= _SHORT
    )
    parts = ", ".join(format_time_part(part) for part in comparison.with_overlap.parts)
    words = [f"  simulated: {phases}", f"  {kinds}"] if kinds else [f"  simulated: {phases}"]
    words.append(f"  the plan with this overlap: {format_seconds(comparison.with_overlap.seconds)} a step: {parts}")
    return "\n".join([*lines, *wrap_lines(words, width)])


def simulated_time_as_dict(comparison: TimeComparison | None) -> dict[str, Any] | None:
    """Values for programs: seconds."""
    if comparison is None:
        return None
    simulated = comparison.simulated
    return {
        "planned_seconds": comparison.planned.seconds,
        "simulated_seconds": simulated.seconds,
        "phases": dict(simulated.phases),
        "kinds": {name: asdict(work) for name, work in simulated.kinds.items()},
        "host": simulated.host,
        "planned_groups": {name: asdict(planned_group(comparison.planned, name)) for name in GROUPS},
        "simulated_groups": {name: asdict(simulated.group(name)) for name in GROUPS},
        "plan_with_simulated_overlap": {
            "seconds": comparison.with_overlap.seconds,
            "parts": [asdict(part) for part in comparison.with_overlap.parts],
        },
    }
