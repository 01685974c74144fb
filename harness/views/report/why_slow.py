"""The end of the report: why a step takes as long as it does, what to try, and what the plan expects of it."""

from __future__ import annotations

from harness.records.record import Record
from harness.slowness import Diagnosis, Told, diagnose
from harness.units import format_seconds
from harness.views.report.html import code
from harness.views.slowness import headline, prediction_words, setting_words

_PARTS = ("data", "forward", "backward", "optimizer", "pipeline", "communication", "io")


def why_slow(record: Record) -> str:
    """A card a cause, the costliest first; where nothing stands out, that, with the shares that were looked at."""
    diagnosis = diagnose(record)
    if not diagnosis.step:
        return ""
    body = "".join(map(_cause, diagnosis.causes)) or f'<div class="card"><p>{code(_nothing(diagnosis))}</p></div>'
    return f'<h2 id="why">Why is it slow?</h2>{body}'


def _nothing(diagnosis: Diagnosis) -> str:
    case = diagnosis.case
    shares = [f"{name} {100 * share:.0f}%" for name in _PARTS if (share := case.share(name)) is not None]
    looked = (
        f" of {format_seconds(diagnosis.step)}: {', '.join(shares)}" if shares else f" of {format_seconds(case.step)}"
    )
    return f"Nothing stands out in a step{looked}. What is left is the computing itself."


def _cause(told: Told) -> str:
    slow = told.slow
    evidence = "".join(f"<li>{code(text)}</li>" for text in slow.evidence)
    tries = "".join(
        f"<li>{code(setting_words(setting))}<br><span class=quiet>{code(prediction_words(prediction))}</span></li>"
        for setting, prediction in told.settings
    )
    advice = "".join(f"<li>{code(text)}</li>" for text in slow.advice)
    none = "<li>no setting that was tried is better by the plan, fits, and passes the gates</li>"
    head = headline(told)
    return (
        f'<div class="card cause"><h3>{code(head[:1].upper() + head[1:])}</h3>'
        f"<ul>{evidence}</ul><h4>To try</h4><ul>{tries or (none if slow.settings else '')}{advice}</ul></div>"
    )
