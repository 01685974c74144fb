# SPDX-License-Identifier: Apache-2.0
"""A tuning as text: the plan and the measurements of each candidate, and the result."""

from __future__ import annotations

from harness.spec.parse.source import join_key
from harness.tuning.candidates import MEMORY_TOLERANCE
from harness.tuning.trials import EARLY_STOP_RATIO, Trial
from harness.tuning.tune_report import TuneReport
from harness.tuning.tuned_spec import format_value
from harness.units import format_bytes, format_count, format_seconds
from harness.views.style import Style

_COLUMNS = ("candidate", "planned", "measured", "spread", "tokens/s", "peak memory", "state")
_COLOURS = {"measured": "", "dropped": "yellow", "not tried": ""}


def render_tune_report(evidence: TuneReport, style: Style, width: int) -> str:
    """The table, the reasons for missing figures, and the result."""
    parts = [
        _format_title(evidence),
        render_trials(evidence, style, width),
        _render_causes(evidence, width),
        _render_notes(evidence, width),
    ]
    parts.append(format_result(evidence, style))
    return "\n\n".join(part for part in parts if part)


def _format_title(e: TuneReport) -> str:
    return (
        f"{e.spec}: {len(e.trials)} of {e.searched:,} settings with the same global batch of {e.global_batch}, on "
        f"{e.ranks} rank{'' if e.ranks == 1 else 's'} of {e.machine}; {e.steps} steps each, the first {e.skip} left out"
    )


def render_trials(e: TuneReport, style: Style, width: int) -> str:
    """One line per trial, with the columns that have a value."""
    rows = [_COLUMNS, *(_format_cells(trial) for trial in e.trials)]
    empty = {i for i in range(len(_COLUMNS)) if e.trials and all(row[i] == "-" for row in rows[1:])}
    rows = [tuple(cell for i, cell in enumerate(row) if i not in empty) for row in rows]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    widths[0] = min(widths[0], max(24, width - sum(widths[1:]) - 2 * len(widths)))
    lines = []
    for n, row in enumerate(rows):
        title = row[0] if len(row[0]) <= widths[0] else row[0][: widths[0] - 3] + "..."
        cells = [title.ljust(widths[0]), *(c.rjust(w) for c, w in zip(row[1:-1], widths[1:-1], strict=True)), row[-1]]
        trial = e.trials[n - 1] if n else None
        mark = ">" if trial is not None and trial is e.ranking.best else " "
        line = f"{mark} {'  '.join(cells)}".rstrip()
        colour = "" if trial is None else "green" if trial is e.ranking.best else _COLOURS.get(trial.state, "red")
        lines.append(style.paint(line, colour, bold=trial is None))
    return "\n".join(lines)


def _format_cells(trial: Trial) -> tuple[str, ...]:
    peak, of = (trial.gpu_peak, "GPU") if trial.gpu_peak else (trial.host_peak, "host")
    return (
        trial.candidate.title,
        "-" if trial.candidate.planned_step_seconds is None else format_seconds(trial.candidate.planned_step_seconds),
        "-" if trial.median_step_seconds is None else format_seconds(trial.median_step_seconds),
        "-" if trial.spread is None else f"{trial.spread:.0%}",
        "-" if trial.tokens_per_second is None else format_count(trial.tokens_per_second),
        "-" if not peak else f"{format_bytes(peak)} {of}",
        trial.state,
    )


def _render_causes(e: TuneReport, width: int) -> str:
    lines = [
        f"  {t.state}: {t.candidate.title}: {t.cause}"[: max(width, 60)]
        for t in e.trials
        if t.cause and t.state not in ("measured", "dropped")
    ]
    return "\n".join(lines)


def _render_notes(e: TuneReport, width: int) -> str:
    """Notes on the table."""
    lines = [f"  refused by {f.gate}: {title} ({f.message})"[: max(width, 60)] for title, f in e.refused[:4]]
    if any(t.state == "dropped" for t in e.trials):
        lines.append(
            f"  dropped: its first measured steps each took over {EARLY_STOP_RATIO} times as long as the best one's"
        )
    if e.reference_gpu:
        lines.append(
            f"  the plan does not know the speed of this machine: candidates are ordered as for {e.reference_gpu}"
        )
    if any(t.candidate.alternative.fit.fits is False for t in e.trials):
        lines.append(
            f"  by the plan, some candidates need up to {MEMORY_TOLERANCE:.0%} more memory than there is, which is "
            f"within its error"
        )
    return "\n".join(lines)


def format_result(e: TuneReport, style: Style) -> str:
    """The fastest candidate, its speed-up, and whether that is more than noise."""
    ranking, best = e.ranking, e.ranking.best
    ended = "" if e.complete else "Interrupted; so far: "
    if best is None:
        return f"{ended}No candidate could be measured."
    if not best.candidate.changes:
        return f"{ended}The unchanged spec was the fastest; it is kept."
    if not ranking.is_faster:
        gain = "" if ranking.gain is None else f" ({ranking.gain:.1%} per step)"
        return f"{ended}No candidate beat the unchanged spec by more than the noise of its steps{gain}; it is kept."
    speed = (
        "the unchanged spec could not be measured"
        if ranking.speedup is None
        else f"{ranking.speedup:.2f} times as fast"
    )
    sets = ", ".join(f"`{join_key(path)}: {format_value(value)}`" for path, value in best.candidate.changes.items())
    return f"{ended}{style.paint('Fastest', 'green', bold=True)}: {best.candidate.title}, {speed}\n  by {sets}"


def format_progress(trial: Trial, number: int, of: int) -> str:
    """One line when a trial has ended."""
    duration = format_seconds(trial.wall_seconds)
    if trial.median_step_seconds is not None:
        rate = "" if trial.tokens_per_second is None else f", {format_count(trial.tokens_per_second)} tokens/s"
        result = f"{format_seconds(trial.median_step_seconds)} per step{rate}" + (
            "" if trial.state == "measured" else f", {trial.state}"
        )
    else:
        result = f"{trial.state}" + (f": {trial.cause}" if trial.cause else "")
    return f"trial {number}/{of}: {trial.candidate.title}: {result} ({duration})"


def render_dry_run(e: TuneReport, style: Style, width: int) -> str:
    """The candidates of a dry run."""
    return "\n\n".join(
        part for part in (_format_title(e), render_trials(e, style, width), _render_notes(e, width)) if part
    )
