# SPDX-License-Identifier: Apache-2.0
"""The head of the report: the run, its end, and the main figures. Reads a record."""

from __future__ import annotations

import time

from harness.checkpoints.checkpoint_list import find_best_checkpoint
from harness.run_records.run_record import RunRecord
from harness.run_records.summary import RunSummary, summarise_run, time_parts
from harness.units import finite_number, format_count, format_seconds, format_trainable
from harness.views.report.html_elements import escape
from harness.views.report.training_charts import entropy_of

_COLOURS = {"completed": "good", "failed": "bad", "broken off": "bad", "running": "on"}
_SIGNS = {"completed": "&#10003; ", "failed": "&#10007; ", "broken off": "&#10007; ", "running": "&#9654; "}


def render_badge(state: str) -> str:
    """The state as a sign, a word and a colour."""
    return f'<span class="state {_COLOURS.get(state, "odd")}">{_SIGNS.get(state, "")}{escape(state)}</span>'


def render_header(record: RunRecord) -> str:
    """Name, state and kind of the run."""
    title = f"<h1>{escape(record.name)}{render_badge(record.state)}</h1>"
    return f"<header>{title}<p>{escape(format_subtitle(record))}</p></header>"


def format_subtitle(record: RunRecord) -> str:
    """Parameters, number format, ZeRO, ranks, start time."""
    start, parts = record.header, []
    if parameters := finite_number(start.get("parameters")):
        trainable = finite_number(start.get("trainable_parameters")) or parameters
        parts.append(f"{format_count(parameters)} parameters")
        parts += [f"trainable {format_trainable(trainable, parameters)}"] if trainable < parameters else []
    if record.run is not None:
        precision = record.run.spec.precision
        parts.append("bf16" if precision.bf16 else "fp16" if precision.fp16 else "fp32")
        parts.append(f"ZeRO stage {record.run.spec.zero.stage}")
        offload = record.run.spec.zero.offload_optimizer
        parts += [f"optimizer on {offload.device}"] if offload and offload.device != "none" else []
    if world := finite_number(start.get("world")):
        parts.append(f"{world:.0f} rank{'s' if world > 1 else ''}")
    if isinstance(start.get("device"), str):
        parts.append(str(start["device"]))
    summary = summarise_run(record)
    if summary.started is not None:
        parts.append("started " + format_time(summary.started))
    return ", ".join(parts)


def format_time(seconds: float) -> str:
    """A time in the time zone of the writer of the report."""
    try:
        return time.strftime("%Y-%m-%d %H:%M", time.localtime(seconds))
    except (OverflowError, ValueError, OSError):
        return "at an unknown time"


def render_facts(record: RunRecord) -> str:
    """The figures."""
    if not record.lines_of("step") and not record.lines_of("eval"):
        return '<p class="card quiet spaced">No step was recorded.</p>'
    cells = (
        f"<div><dt>{escape(name)}</dt><dd>{escape(value)}{f'<small>{escape(note)}</small>' if note else ''}</dd></div>"
        for name, value, note in _fact_rows(record, summarise_run(record))
    )
    return f'<dl class="facts">{"".join(cells)}</dl>'


def _fact_rows(record: RunRecord, s: RunSummary) -> list[tuple[str, str, str]]:
    steps = ("steps", f"{s.step:,}", f"of {s.steps:,}" if s.steps else "")
    return [steps, *_loss_facts(record, s), *_speed_facts(s), *_progress_facts(record, s)]


def _loss_facts(record: RunRecord, s: RunSummary) -> list[tuple[str, str, str]]:
    facts = []
    is_of_tokens = record.loss_unit == "token"
    per_unit = "nats per token" if is_of_tokens else f"mean of the {record.loss_unit}s"
    if s.loss is not None:
        facts.append(("training loss", f"{s.loss:.4f}", f"from {s.first_loss:.4f}" if s.first_loss is not None else ""))
    if s.eval_loss is not None:
        passed = s.best_eval is not None and s.best_eval[1] < s.eval_loss
        best = f"best {s.best_eval[1]:.4f} at step {s.best_eval[0]:,}" if s.best_eval and passed else per_unit
        facts.append(("held-out loss", f"{s.eval_loss:.4f}", best))
    best_checkpoint = find_best_checkpoint(record.folder)
    if best_checkpoint is not None:
        facts.append(("best checkpoint", f"step {best_checkpoint.step:,}", f"loss {best_checkpoint.loss:.4f}"))
    entropy = entropy_of(record.training)
    if entropy is not None and s.eval_loss is not None:
        below = f", {entropy - s.eval_loss:.3f} above the loss" if s.eval_loss < entropy else ""
        facts.append(("unigram entropy", f"{entropy:.4f}", f"nats per token{below}"))
    accuracies = [key for key in record.training.measured_names() if key.endswith("accuracy")]
    for key in accuracies:
        kind = "eval" if record.training.points("eval", key) else "step"
        note = "held-out" if kind == "eval" else "last step"
        name = key.partition(".")[2].replace("_", " ")
        facts += [(name, f"{value:.1%}", note) for _, value in record.training.points(kind, key)[-1:]]
    perplexity = record.training.points("eval", "perplexity") if is_of_tokens else []
    return facts + ([("perplexity", f"{perplexity[-1][1]:.4g}", "held-out")] if perplexity else [])


def _speed_facts(s: RunSummary) -> list[tuple[str, str, str]]:
    facts = []
    if s.tokens_per_second:  # rows of the user's own data have no tokens
        facts.append(("throughput", f"{s.tokens_per_second:,.0f}", "tokens/s, median"))
    if s.mfu is not None:
        facts.append(("MFU", f"{100 * s.mfu:.1f}%", "median"))
    if s.step_seconds is not None:
        facts.append(("a step", format_seconds(s.step_seconds), "median"))
    return facts


def _progress_facts(record: RunRecord, s: RunSummary) -> list[tuple[str, str, str]]:
    facts = []
    if s.tokens:
        facts.append(("tokens", format_count(s.tokens), "read, without padding"))
    if s.predicted_tokens:
        facts.append(("predicted tokens", format_count(s.predicted_tokens), "of these, counted by the loss"))
    if s.seconds:
        facts.append(("time", format_seconds(s.seconds), time_parts(record) or "since the start of this launch"))
    if record.history:
        part = record.part
        name = part.branch_of or (part.parent if part.training == record.folder.name else part.training) or ""
        facts.append(("branch of" if record.part.branch_of else "continues", name, "with the curves of its steps"))
    if s.attempts > 1:
        facts.append(("attempts", str(s.attempts), f"{s.lost:,} steps repeated"))
    if s.skipped:
        facts.append(("skipped steps", f"{s.skipped:,}", "changed nothing"))
    return facts
