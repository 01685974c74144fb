# SPDX-License-Identifier: Apache-2.0
"""The end of the report: causes of slowness, settings to try, and the plan's prediction for each."""

from __future__ import annotations

from harness.run_records.run_record import RunRecord
from harness.slowness import SlowdownReport, SlownessReport, diagnose_slowness
from harness.units import format_seconds
from harness.views.report.html_elements import format_code
from harness.views.slowness_text import format_headline, format_prediction, format_setting

_STEP_PARTS = ("data", "forward", "backward", "optimizer", "pipeline", "communication", "io")


def render_slowness(record: RunRecord) -> str:
    """One card per cause, the costliest first; without a cause, the shares that were checked."""
    diagnosis = diagnose_slowness(record)
    if not diagnosis.step_seconds:
        return ""
    body = (
        "".join(map(_render_cause, diagnosis.slowdowns))
        or f'<div class="card"><p>{format_code(_format_nothing_found(diagnosis))}</p></div>'
    )
    return f'<h2 id="why">Why is it slow?</h2>{body}'


def _format_nothing_found(diagnosis: SlownessReport) -> str:
    case = diagnosis.measurements
    shares = [f"{name} {100 * share:.0f}%" for name in _STEP_PARTS if (share := case.measured_share(name)) is not None]
    looked = (
        f" of {format_seconds(diagnosis.step_seconds)}: {', '.join(shares)}"
        if shares
        else f" of {format_seconds(case.step_seconds)}"
    )
    return f"No single cause of slowness in a step{looked}. Most of it is compute."


def _render_cause(report: SlowdownReport) -> str:
    slow = report.slowdown
    evidence = "".join(f"<li>{format_code(text)}</li>" for text in slow.evidence)
    tries = "".join(
        f"<li>{format_code(format_setting(setting))}<br>"
        f"<span class=quiet>{format_code(format_prediction(prediction))}</span></li>"
        for setting, prediction in report.settings
    )
    advice = "".join(f"<li>{format_code(text)}</li>" for text in slow.advice)
    none = "<li>no setting fits, passes the gates and is faster by the plan</li>"
    head = format_headline(report)
    return (
        f'<div class="card cause"><h3>{format_code(head[:1].upper() + head[1:])}</h3>'
        f"<ul>{evidence}</ul><h4>To try</h4><ul>{tries or (none if slow.settings else '')}{advice}</ul></div>"
    )
