"""The report of a run: one HTML file with everything in it, for a browser, a mail or an archive. No network, no script.

Reads the run directory alone and changes nothing in it but `report.html`.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path
from statistics import median

from harness.files import write_atomically
from harness.units import format_count, format_seconds
from harness.views.plots import Series, line_chart, share_bar
from harness.views.report_data import Record, number, read_record
from harness.views.report_plan import configuration, memory_section
from harness.views.report_style import STYLE

_COLOURS = {"completed": "good", "failed": "bad", "not started": "odd"}
_PARTS = ("data", "forward", "backward", "optimizer", "pipeline")


def write(run_dir: Path, output: Path | None = None) -> Path:
    """Write the report of a run directory, by default to its `report.html`, and return its path. Raises OSError."""
    target = output or run_dir / "report.html"
    write_atomically(target, page(read_record(run_dir)))
    return target


def page(record: Record) -> str:
    """The whole document."""
    sections = [
        _header(record),
        _summary(record),
        _trouble(record),
        _curves(record),
        memory_section(record),
        _sample(record),
        configuration(record),
    ]
    title = f"{escape(record.name)} - harness report"
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{title}</title><style>{STYLE}</style></head>\n<body><main>\n"
        + "\n".join(section for section in sections if section)
        + "\n</main></body></html>\n"
    )


def _header(record: Record) -> str:
    state = record.state
    badge = f'<span class="state {_COLOURS.get(state, "odd")}">{escape(state)}</span>'
    return f"<header><h1>{escape(record.name)}{badge}</h1><p>{escape(_subtitle(record))}</p></header>"


def _subtitle(record: Record) -> str:
    start, parts = record.start, []
    if parameters := number(start.get("parameters")):
        parts.append(f"{format_count(parameters)} parameters")
    if record.run is not None:
        precision = record.run.spec.precision
        parts.append("bf16" if precision.bf16 else "fp16" if precision.fp16 else "fp32")
        parts.append(f"ZeRO stage {record.run.spec.zero.stage}")
        offload = record.run.spec.zero.offload_optimizer
        parts += [f"optimizer on {offload.device}"] if offload and offload.device != "none" else []
    if world := number(start.get("world")):
        parts.append(f"{world:.0f} rank{'s' if world > 1 else ''}")
    return ", ".join(parts)


def _summary(record: Record) -> str:
    facts: list[tuple[str, str, str]] = []
    steps, evals = record.of("step"), record.of("eval")
    if steps:
        planned = number(record.start.get("steps"))
        facts.append(("steps", f"{steps[-1].get('step', len(steps))}", f"of {planned:.0f}" if planned else ""))
        facts += _fact("training loss", record.points("step", "loss"), "last step")
    if evals:
        facts += _held_out(record)
    speeds = [value for _, value in record.points("step", "tokens_per_second")]
    if speeds:
        facts.append(("throughput", f"{median(speeds):,.0f}", "tokens/s, median"))
    tokens = [value for _, value in record.points("step", "tokens")]
    if tokens:
        facts.append(("tokens", format_count(tokens[-1]), "trained on"))
    seconds = sum(value for _, value in record.points("step", "seconds"))
    if seconds:
        facts.append(("time in steps", format_seconds(seconds), ""))
    skipped = [value for _, value in record.points("step", "skipped")]
    if skipped and skipped[-1]:
        facts.append(("skipped steps", f"{skipped[-1]:.0f}", "overflow"))
    if not facts:
        return '<p class="card quiet spaced">No step was recorded.</p>'
    cells = (
        f"<div><dt>{escape(name)}</dt><dd>{escape(value)}{f'<small>{escape(note)}</small>' if note else ''}</dd></div>"
        for name, value, note in facts
    )
    return f'<dl class="facts">{"".join(cells)}</dl>'


def _fact(name: str, points: Sequence[tuple[float, float]], note: str) -> list[tuple[str, str, str]]:
    return [(name, f"{points[-1][1]:.4f}", note)] if points else []


def _held_out(record: Record) -> list[tuple[str, str, str]]:
    losses, perplexities = record.points("eval", "loss"), record.points("eval", "perplexity")
    facts = []
    if losses:
        facts.append(("held-out loss", f"{losses[-1][1]:.4f}", "nats a token"))
    if entropy := _entropy(record):
        below = f", {entropy - losses[-1][1]:.3f} above the loss" if losses and losses[-1][1] < entropy else ""
        facts.append(("unigram entropy", f"{entropy:.4f}", f"nats a token{below}"))
    return facts + _fact("perplexity", perplexities, "held-out")


def _entropy(record: Record) -> float | None:
    points = record.points("eval", "unigram_entropy")
    return points[-1][1] if points else number(record.start.get("unigram_entropy"))


def _trouble(record: Record) -> str:
    """What failed, why it stopped, and what the gates said, in this order."""
    items = [
        f'<li class="bad">rank {escape(str(s.get("rank", "?")))} on {escape(str(s.get("host", "?")))}: '
        f"<code>{escape(str(s['error']))}</code></li>"
        for s in record.statuses
        if s.get("error")
    ]
    items += [
        f"<li>started again from step {escape(str(s.get('step', '?')))} after step "
        f"{escape(str(s.get('lost_step', '?')))}: {escape(str(s.get('cause', '')))}</li>"
        for s in record.of("restart")
    ]
    items += [
        f"<li>stopped after step {escape(str(s.get('step', '?')))}: {escape(str(s.get('reason', '')))}</li>"
        for s in record.of("stop")
    ]
    if record.unread:
        items.append(
            f"<li>{record.unread} line{'s' if record.unread > 1 else ''} of metrics.jsonl could not be read</li>"
        )
    items += [
        f"<li>{escape(str(f.get('severity', '')))} {escape(str(f.get('gate', '')))}: "
        f"{_ticks(str(f.get('message', '')))}</li>"
        for f in record.findings
    ]
    return f'<h2>What to know</h2><div class="card"><ul>{"".join(items)}</ul></div>' if items else ""


def _ticks(text: str) -> str:
    """Backticks as code."""
    parts = escape(text).split("`")
    return "".join(f"<code>{part}</code>" if i % 2 and i < len(parts) - 1 else part for i, part in enumerate(parts))


def _curves(record: Record) -> str:
    if not record.of("step") and not record.of("eval"):
        return ""
    entropy = _entropy(record)
    loss = [
        Series("training loss", record.points("step", "loss"), colour=1),
        Series("held-out loss", record.points("eval", "loss"), "dots", 2),
        Series("unigram entropy", [(0.0, entropy)] if entropy else [], "rule", 5),
    ]
    charts = [
        line_chart("Loss, nats a token", loss),
        line_chart(
            "Learning rate", [Series("learning rate", record.points("step", "learning_rate"), colour=3)], zero=True
        ),
        line_chart(
            "Tokens a second", [Series("tokens/s", record.points("step", "tokens_per_second"), colour=4)], zero=True
        ),
        line_chart(
            "Gradient norm before clipping", [Series("norm", record.points("step", "grad_norm"), colour=2)], zero=True
        ),
    ]
    if record.points("step", "loss_scale"):
        charts.append(line_chart("Loss scale", [Series("loss scale", record.points("step", "loss_scale"))], zero=True))
    return f'<h2>Training</h2><div class="grid2">{"".join(charts)}</div>{_step_time(record)}{_saves(record)}'


def _step_time(record: Record) -> str:
    """The median step, cut into its parts; the first step, which warms up, is left out where there are others."""
    totals = [value for _, value in record.points("step", "seconds")][-_without_first(record) :]
    if not totals:
        return ""
    whole = median(totals)
    parts = []
    for name in _PARTS:
        values = [value for _, value in record.points("step", f"seconds_{name}")][-_without_first(record) :]
        if values:
            parts.append((name, median(values), format_seconds(median(values))))
    if not parts:
        return ""
    rest = whole - sum(value for _, value, _ in parts)
    if rest > 0:
        parts.append(("other", rest, format_seconds(rest)))
    return f'<div class="card spaced"><h3>A step, {format_seconds(whole)} (median)</h3>{share_bar(parts)}</div>'


def _without_first(record: Record) -> int:
    return max(1, len(record.of("step")) - 1)


def _saves(record: Record) -> str:
    saves = record.of("save")
    if not saves:
        return ""
    rows = (
        f"<tr><td>{escape(str(s.get('step', '')))}</td><td><code>{escape(str(s.get('path', '')))}</code></td>"
        f'<td class="num">{_seconds(s.get("seconds"))}</td></tr>'
        for s in saves
    )
    return _details(
        "Checkpoints",
        f'<table><tr><th>step</th><th>folder</th><th class="num">time</th></tr>{"".join(rows)}</table>',
    )


def _seconds(value: object) -> str:
    seconds = number(value)
    return "" if seconds is None else escape(format_seconds(seconds))


def _details(title: str, body: str) -> str:
    return f'<details class="card"><summary>{escape(title)}</summary><div class="scroll">{body}</div></details>'


def _sample(record: Record) -> str:
    if not record.sample.strip():
        return ""
    text = escape(record.sample.rstrip())
    return f'<h2>Sample from the export</h2><div class="card"><pre class="wrap">{text}</pre></div>'
