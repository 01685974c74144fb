# SPDX-License-Identifier: Apache-2.0
"""The list of runs, as a table for people and as JSON for programs. Reads nothing."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime

from harness.checkpoints.checkpoint_list import find_best_checkpoint
from harness.run_records.summary import RunSummary
from harness.units import format_count
from harness.verdicts import describe_verdict, verdict_to_json
from harness.views.style import Style, escape_unprintable

FORMAT_VERSION = 1
_COLOURS = {"completed": "green", "running": "cyan", "failed": "red", "broken off": "red", "stopped": "yellow"}
_COLUMNS = ("run", "state", "step", "loss", "held-out", "tokens/s", "MFU", "started", "attempts", "tags")
_MAX_BROKEN = 10
_MAX_ENDS = 10
_MAX_CHARS = 200
"""Of the line of a verdict."""
_LEFT_ALIGNED = {0, 1, 7, 9}
"""Columns of text; the others are figures and right-aligned."""


def render_runs(folder: str, runs: Sequence[RunSummary], style: Style) -> str:
    """One line per run, and the number of runs."""
    if not runs:
        return f"no runs in {folder}; `harness launch SPEC` starts one"
    now = time.time()
    rows = [_COLUMNS, *(_format_row(run, now) for run in runs)]
    used = [i for i in range(len(_COLUMNS)) if any(row[i] for row in rows[1:])]
    widths = {i: max(len(row[i]) for row in rows) for i in used}
    lines = []
    for number, row in enumerate(rows):
        cells = []
        for i in used:
            text = row[i].ljust(widths[i]) if i in _LEFT_ALIGNED else row[i].rjust(widths[i])
            if number == 0:
                text = style.paint(text, "", bold=True)
            elif i == 1:
                text = style.paint(text, _COLOURS.get(row[i], ""))
            cells.append(text)
        lines.append("  ".join(cells).rstrip())
    ends = [run for run in runs if run.verdict is not None and run.state in ("failed", "stopped")]
    lines += ["", *map(_format_end, ends[:_MAX_ENDS])] if ends else []
    lines += [f"and {len(ends) - _MAX_ENDS} older runs that did not complete"] if ends[_MAX_ENDS:] else []
    broken = [f"{escape_unprintable(run.name)}: {escape_unprintable(text)}" for run in runs for text in run.unusable]
    lines += broken[:_MAX_BROKEN]
    lines += [f"and {len(broken) - _MAX_BROKEN} more unusable files"] if broken[_MAX_BROKEN:] else []
    count = f"{len(runs)} run{'s' if len(runs) > 1 else ''}"
    launches = sum(len(run.parts) for run in runs)
    count += f" of {launches} launches" if launches > len(runs) else ""
    going = sum(run.state == "running" for run in runs)
    return "\n".join([*lines, "", f"{count} in {folder}" + (f", {going} running" if going else "")])


def _format_end(run: RunSummary) -> str:
    """The verdict of a run that did not complete, in a line."""
    text = escape_unprintable(" ".join(describe_verdict(run.verdict).split())) if run.verdict else ""
    return f"{escape_unprintable(run.name)}: {text if len(text) <= _MAX_CHARS else text[: _MAX_CHARS - 3] + '...'}"


def _format_row(run: RunSummary, now: float) -> tuple[str, ...]:
    return (
        ("  branch: " if run.branch_of else "") + escape_unprintable(run.name),
        escape_unprintable(run.state),
        f"{run.step:,}" + (f"/{run.steps:,}" if run.steps else ""),
        "" if run.loss is None else f"{run.loss:.3f}",
        "" if run.eval_loss is None else f"{run.eval_loss:.3f}",
        format_count(run.tokens_per_second) if run.tokens_per_second else "",
        "" if run.mfu is None else f"{100 * run.mfu:.1f}%",
        _format_ago(run.training_started or run.started, now),
        str(run.attempts) if run.attempts > 1 else "",
        escape_unprintable(", ".join(run.tags)),
    )


def _format_ago(moment: float | None, now: float) -> str:
    """The date, or how long ago where that is less than a day."""
    if moment is None:
        return ""
    seconds = now - moment
    if 0 <= seconds < 60:
        return "just now"
    if 0 <= seconds < 3600:
        return f"{seconds // 60:.0f} min ago"
    if 0 <= seconds < 86400:
        return f"{seconds // 3600:.0f} h ago"
    try:
        return time.strftime("%Y-%m-%d %H:%M", time.localtime(moment))
    except (OverflowError, ValueError, OSError):
        return ""


def runs_as_json(runs: Sequence[RunSummary]) -> str:
    """An object with a list; times in UTC as ISO 8601 and seconds since 1970."""
    body = {"format_version": FORMAT_VERSION, "runs": [run_as_dict(run) for run in runs]}
    return json.dumps(body, indent=2)


def run_as_dict(run: RunSummary) -> dict[str, object]:
    """One run."""
    best = {"step": run.best_eval[0], "loss": run.best_eval[1]} if run.best_eval else None
    best_checkpoint = find_best_checkpoint(run.folder)
    return {
        **asdict(run),
        "folder": str(run.folder),
        "best_eval": best,
        "best_checkpoint": None
        if best_checkpoint is None
        else {**asdict(best_checkpoint), "path": str(best_checkpoint.path)},
        "verdict": None if run.verdict is None else verdict_to_json(run.verdict),
        "started_at": _format_iso(run.started),
        "seconds": run.seconds,
    }


def _format_iso(moment: float | None) -> str | None:
    if moment is None:
        return None
    try:
        return datetime.fromtimestamp(moment, UTC).isoformat(timespec="seconds")
    except (OverflowError, ValueError, OSError):
        return None
