# SPDX-License-Identifier: Apache-2.0
"""The short sections of a report: configuration, engine checks, patches, causes of slowness, speed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from statistics import median
from typing import Any

from harness.patches.patch_registry import all_patches
from harness.render import render_ds_config
from harness.run_records.run_files import parse_object
from harness.run_records.run_record import RunRecord
from harness.run_records.summary import median_or_none
from harness.slowness import SlowdownReport, SlownessReport, diagnose_slowness
from harness.units import format_seconds
from harness.views.report.html_elements import (
    Cell,
    escape,
    format_code,
    note_cell,
    render_details,
    render_share_bar,
    render_table,
    truncate,
)
from harness.views.report.training_charts import STEP_PARTS
from harness.views.slowness_text import format_headline, format_prediction, format_setting

_ABSENT = object()


def render_config(record: RunRecord, most: int) -> str:
    """Two folded blocks, each text cut at a maximum length."""
    parts = []
    if record.spec_text.strip():
        parts.append(render_details("spec.yaml", f"<pre>{escape(truncate(record.spec_text.rstrip(), most))}</pre>"))
    if record.config_text.strip():
        body = _render_reasons(record) + f"<pre>{escape(truncate(record.config_text.rstrip(), most))}</pre>"
        parts.append(render_details("ds_config.json, with reasons", body))
    return f"<h2>Configuration</h2>{''.join(parts)}" if parts else ""


def render_sample(record: RunRecord, most: int) -> str:
    """The text that the export generated."""
    if not record.sample.strip():
        return ""
    text = escape(truncate(record.sample.rstrip(), most))
    return f'<h2>Sample from the export</h2><div class="card"><pre class="wrap">{text}</pre></div>'


_SHOWN_EVALUATIONS = 30


def render_samples(record: RunRecord, most: int) -> str:
    """The continuations of each prompt of `eval.samples` at each evaluation, the newest first."""
    lines = [
        (step, [str(text) for text in texts])
        for line in record.training.lines_of("eval")
        if isinstance(texts := line.get("samples"), list) and isinstance(step := line.get("step"), int) and texts
    ]
    shown = lines[: -_SHOWN_EVALUATIONS - 1 : -1]
    if not shown:
        return ""
    prompts = record.run.spec.eval.samples if record.run is not None else ()
    count = max(len(texts) for _, texts in shown)
    share = max(200, most // (count * len(shown)))
    cards = []
    for number in range(count):
        title = f"after: {prompts[number]}" if number < len(prompts) else f"sample {number + 1}"
        rows = [(Cell(f"{step:,}", "num"), Cell(f'<pre class="wrap">{escape(truncate(texts[number], share))}</pre>'))
                for step, texts in shown if number < len(texts)]  # fmt: skip
        body = render_table(["step", "text"], rows)
        cards.append(render_details(truncate(title, 200), body).replace("<details ", "<details open ", 1))
    return f'<h2 id="samples">Samples at evaluations</h2>{"".join(cards)}'


def _render_reasons(record: RunRecord) -> str:
    """Key, value and reason, where this harness renders the same value; an older or edited JSON has fewer reasons."""
    run_config = parse_object(record.config_text)
    if record.run is None or not run_config:
        return ""
    config = render_ds_config(record.run)
    lines: list[list[str | Cell]] = []
    for key, reason in config.reasons.items():
        value = _value_at(run_config, key)
        if value is _ABSENT or value != _value_at(config.config, key):
            continue
        lines.append([_code_cell(key), _code_cell(json.dumps(value)), note_cell(reason)])
    return render_table(["key", "value", "why"], lines) if lines else ""


def _code_cell(text: str) -> Cell:
    return Cell(f"<code>{escape(text)}</code>")


def _value_at(config: Any, key: str) -> Any:
    for part in key.split("."):
        config = config.get(part, _ABSENT) if isinstance(config, Mapping) else _ABSENT
    return config


_STATE_LABELS = {"holds": "holds", "differs": "differs", "skipped": "not asked"}


def render_engine_checks(record: RunRecord) -> str:
    """A line with the counts, the differences, and all checks folded; nothing for a run without checks."""
    if not record.engine_checks:
        return ""
    by_state = {state: [c for c in record.engine_checks if c.get("state") == state] for state in _STATE_LABELS}
    differences = "".join(
        f'<li class="bad">{_escape_id(c)}: {format_code(str(c.get("text", "")))}</li>'
        for c in by_state["differs"]
        if "ignored" not in c
    )
    counts = f"{len(by_state['holds'])} of {len(record.engine_checks)} checks passed"
    counts += f", {len(by_state['differs'])} failed" if by_state["differs"] else ""
    counts += f"; {len(by_state['skipped'])} do not apply to this run" if by_state["skipped"] else ""
    rows = "".join(_render_row(claim) for claim in record.engine_checks)
    table = f"<details><summary>all claims</summary><table>{rows}</table></details>"
    return (
        '<h2 id="engine-checks">Engine checks</h2>'
        f'<div class="card"><p>{counts}.</p>{f"<ul>{differences}</ul>" if differences else ""}{table}</div>'
    )


def _render_row(claim: Mapping[str, Any]) -> str:
    state = _STATE_LABELS.get(str(claim.get("state")), "?")
    text = format_code(str(claim.get("text") or ""))
    if "ignored" in claim:
        text += f" (ignored by the spec: {escape(str(claim['ignored']))})"
    question = format_code(str(claim.get("question", "")))
    return f"<tr><td>{_escape_id(claim)}</td><td>{question}</td><td>{state}</td><td>{text}</td></tr>"


def _escape_id(claim: Mapping[str, Any]) -> str:
    return escape(str(claim.get("id", "?")))


_PLAIN_STATES = ("applied", "not needed")


def render_patches(record: RunRecord) -> str:
    """A line with the count, what is off or was skipped below it, and all patches folded; empty for a run that recorded
    none. Of a run that was restarted, the states are those of its last start.
    """
    header = record.lines_of("run")[-1] if record.lines_of("run") else {}
    states = header.get("patches")
    if not isinstance(states, dict) or not states:
        return ""
    texts = {str(name): str(state) for name, state in states.items()}
    others = {name: state for name, state in texts.items() if state not in _PLAIN_STATES}
    count = f"{sum(state == 'applied' for state in texts.values())} of {len(texts)} patches were applied."
    items = "".join(f"<li><code>{escape(name)}</code>: {escape(state)}</li>" for name, state in others.items())
    summaries = {patch.name: f"{patch.kind}: {patch.summary}" for patch in all_patches()}
    rows: list[list[str | Cell]] = [
        [Cell(f"<code>{escape(name)}</code>"), note_cell(state), note_cell(summaries.get(name, ""))]
        for name, state in texts.items()
    ]
    table = f"<details><summary>all patches</summary>{render_table(['patch', 'state', 'change'], rows)}</details>"
    return (
        '<h2 id="patches">Patches of DeepSpeed and other packages</h2>'
        f'<div class="card"><p>{count}</p>{f"<ul>{items}</ul>" if items else ""}{table}</div>'
    )


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


def render_median_step(record: RunRecord) -> str:
    """The median step, cut into its parts, with communication and swapping, which are inside of those."""
    totals = record.values("seconds")
    if not totals:
        return ""
    whole = median(totals)
    parts = []
    for name in STEP_PARTS:
        value = median_or_none(record.values(f"seconds_{name}"))
        if value:
            parts.append((name, value, format_seconds(value)))
    if not parts:
        return ""
    rest = whole - sum(value for _, value, _ in parts)
    if rest > 0.005 * whole:
        parts.append(("other", rest, format_seconds(rest)))
    inside = [
        f"{format_seconds(value)} ({100 * value / whole:.0f}%) {label}"
        for key, label in (("communication", "in communication"), ("io", "blocked by NVMe"))
        if (value := median_or_none(record.values(f"seconds_{key}")))
    ]
    within = f'<p class="quiet">Inside of these: {escape(", ".join(inside))}.</p>' if inside else ""
    title = f"The median step, {format_seconds(whole)}"
    inner = f"<h3>{escape(title)}</h3>{render_share_bar(parts)}{within}{_render_between_steps(record, sum(totals))}"
    return f'<div class="card spaced">{inner}</div>'


def _render_between_steps(record: RunRecord, inside: float) -> str:
    """Saves and evaluations, which no step contains."""
    sums = {
        "saves": sum(v for _, v in record.points("step", "seconds_checkpoint"))
        or sum(v for _, v in record.points("save", "stall_seconds")),
        "evaluations": sum(v for _, v in record.points("step", "seconds_evaluation"))
        or sum(v for _, v in record.points("eval", "seconds")),
    }
    parts = [f"{format_seconds(s)} in {name}" for name, s in sums.items() if s >= 0.001]
    if not parts or not inside:
        return ""
    share = 100 * sum(sums.values()) / (inside + sum(sums.values()))
    return f'<p class="quiet">Between the steps: {escape(" and ".join(parts))}, {share:.0f}% of the run.</p>'
