# SPDX-License-Identifier: Apache-2.0
"""A plan as text: the answer on one screen, with `--long` its tables, and the next command."""

from __future__ import annotations

import textwrap

from harness.check.plan_report import PlanReport
from harness.units import pluralize
from harness.views.plan_details import render_details
from harness.views.plan_screen import SAID_ABOVE, render_screen
from harness.views.style import Style

_NOTHING_STARTED = "Nothing was started and no host was contacted."


def render_plan(report: PlanReport, style: Style, width: int = 100, *, long: bool = False) -> str:
    """The whole answer. Findings of keys that are not known are counted here, not shown."""
    blocks = [render_screen(report, style, width)]
    if long:
        blocks.append(render_details(report, style, width))
    blocks.append(_format_footer(report, width, long=long))
    return "\n\n".join(block for block in blocks if block)


def _format_footer(report: PlanReport, width: int, *, long: bool) -> str:
    errors = sum(f.severity == "error" for f in report.findings)
    warnings = sum(f.severity == "warning" and (long or f.gate not in SAID_ABOVE) for f in report.findings)
    world = report.plan.run.parallel_dims.world_size
    ranks = "unknown ranks" if world is None else pluralize(world, "rank")
    text = f"Plan: {ranks}, {pluralize(errors, 'error')}, {pluralize(warnings, 'warning')}. {_NOTHING_STARTED}"
    if not long and report.plan.memory is not None:
        text += " More: `--long`."
    lines = textwrap.wrap(text, max(width, 40), break_on_hyphens=False)
    return "\n".join([*lines, f"Next: {report.next_command}"] if report.next_command else lines)
