# SPDX-License-Identifier: Apache-2.0
"""The report: one HTML file with everything in it, for a browser, a mail or an archive. Needs no network.

Reads run directories alone and writes nothing to them but `report.html`.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Callable, Sequence
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from harness.file_io import replace_file, write_output_file
from harness.run_records.run_record import RunRecord, read_run_record
from harness.secret_text import hide_passwords
from harness.views.report.charts import render_charts
from harness.views.report.comparison_section import names_of, render_comparison
from harness.views.report.header import render_badge, render_facts, render_header
from harness.views.report.html_elements import escape
from harness.views.report.memory_section import build_memory_charts, render_memory_bars, render_plan_tables
from harness.views.report.problems_section import render_problems
from harness.views.report.ranks_section import render_ranks
from harness.views.report.run_sections import (
    render_config,
    render_engine_checks,
    render_median_step,
    render_patches,
    render_sample,
    render_samples,
    render_slowness,
)
from harness.views.report.timeline_section import render_timeline
from harness.views.report.training_charts import (
    axes_of,
    build_comparison_charts,
    build_learning_charts,
    build_speed_charts,
)

MAX_BYTES = 1_900_000
_MAX_POINTS, _MAX_TEXT = 900, 100_000
_NO_SCRIPT = "A script draws the curves, and scripts are disabled here; the figures are below each title."


def write_report_or_note(run_dir: Path, log: Callable[[str], None]) -> Path | None:
    """Write the report of a run; None where that fails, with the reason as a line for `log`. The run keeps its
    verdict.
    """
    try:
        return write_report(run_dir)
    except OSError as error:
        log(f"the report could not be written: {error}")
    except Exception as error:  # our fault, and no reason to call the training failed
        log(f"the report failed, a bug in harness; please report it: {type(error).__name__}: {error}")
    return None


def write_report(runs: Path | Sequence[Path], output: Path | None = None) -> Path:
    """Write the report of one or more run directories, by default to the (first) one's `report.html`, or where there
    are several to its `comparison.html`, and return its path. Raises OSError.
    """
    folders = [runs] if isinstance(runs, Path) else list(runs)
    text = hide_passwords(render_report([read_run_record(folder) for folder in folders]))
    if output is not None:
        write_output_file(output, text)
        return output
    target = folders[0] / ("report.html" if len(folders) == 1 else "comparison.html")
    replace_file(target, text)  # a link there is replaced: who made the directory must not choose what is overwritten
    return target


def render_report(records: Sequence[RunRecord], *, live: str = "") -> str:
    """The whole document, below two megabytes however long the run was. `live` is its version at the server that it
    came from, which it then asks for newer ones.
    """
    share = max(1, len(records))
    points, text = max(60, _MAX_POINTS // share), _MAX_TEXT // share
    page = _render_page(records, points, text, live=live)
    while len(page.encode()) > MAX_BYTES and points > 10:
        points, text = points // 2, text // 4
        page = _render_page(records, points, text, live=live)
    return page


def _render_page(records: Sequence[RunRecord], points: int, text: int, *, live: str) -> str:
    data: list[dict[str, Any]] = []
    if len(records) == 1:
        body = [render_header(records[0]), *_run_sections(records[0], points, text, data)]
    else:
        body = _comparison_sections(records, points, text, data)
    title = " against ".join(record.name for record in records[:3])
    axes = [axes_of(record.training) for record in records]
    return render_document(f"{title} - harness report", body, data, axes, live=live)


def render_document(
    title: str,
    body: Sequence[str],
    charts: Sequence[dict[str, Any]],
    axes: Sequence[dict[str, list[list[float]]]],
    scripts: Sequence[str] = ("report.js",),
    *,
    live: str = "",
) -> str:
    """A page with its sections, the data of its charts, the axes of each run and everything that draws them."""
    script = "\n".join(map(_read_asset, ("uPlot.iife.min.js", *scripts)))
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'; img-src data:; "
    policy += "base-uri 'none'; form-action 'none'; connect-src " + ("'self'" if live else "'none'")
    asks = f' data-live="{escape(live, quote=True)}"' if live else ""
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{_read_asset('uPlot.min.css')}{_read_asset('report.css')}</style></head>\n"
        f'<body{asks}><main>\n<noscript><p class="card">{_NO_SCRIPT}</p></noscript>\n'
        + "\n".join(section for section in body if section)
        + f'\n</main>\n<script type="application/json" id="charts">{_embed_json(charts)}</script>'
        + f'\n<script type="application/json" id="axes">{_embed_json(axes)}</script>'
        + f"\n<script>{script}</script></body></html>\n"
    )


TOOLS = (
    '<p class="tools"><label>smoothing <input type="range" id="smoothing" min="0" max="0.98" step="0.02" value="0">'
    '</label> <label>axis <select id="axis"><option value="step">steps</option><option value="tokens">tokens</option>'
    '<option value="hours">hours of steps</option></select></label></p>'
)
"""For the script: the weight of the earlier values in an exponential mean, and the horizontal axis."""


def _run_sections(
    record: RunRecord, points: int, text: int, data: list[dict[str, Any]], number: int = 0, *, tools: str = TOOLS
) -> list[str]:
    """The sections of the run with this number on the page; the data of its charts is added to `data`."""
    trained = bool(record.lines_of("step") or record.lines_of("eval"))
    learning, series = (
        render_charts(build_learning_charts(record.training), points, len(data), number) if trained else ("", [])
    )
    data += series
    speed, series = (
        render_charts(build_speed_charts(record.training), points, len(data), number) if trained else ("", [])
    )
    data += series
    memory, series = render_charts(build_memory_charts(record), points, len(data), number)
    data += series
    bars = render_memory_bars(record)
    planned = render_plan_tables(record)
    return [
        render_facts(record),
        render_problems(record),
        f'<h2>Training</h2>{tools}<div class="grid2">{learning}</div>' if learning else "",
        f'<h2>Speed</h2><div class="grid2">{speed}</div>{render_median_step(record)}' if speed else "",
        f'<h2>Memory, planned and measured</h2><div class="grid2">{bars}{memory}</div>{planned}'
        if bars or planned
        else "",
        render_ranks(record),
        render_timeline(record),
        render_engine_checks(record),
        render_patches(record),
        render_samples(record, text),
        render_sample(record, text),
        render_config(record, text),
        render_slowness(record),
    ]


def _comparison_sections(records: Sequence[RunRecord], points: int, text: int, data: list[dict[str, Any]]) -> list[str]:
    """The comparison first, then each run by itself, folded."""
    names = names_of(records)
    charts = build_comparison_charts([record.training for record in records], names)
    curves, series = render_charts([chart for chart in charts if any(s.points for s in chart.series)], points)
    data += series
    title = f"{len(records)} runs compared"
    body = [
        f"<header><h1>{title}</h1></header>",
        render_comparison(records),
        f'<h2>Curves</h2>{TOOLS}<div class="grid2">{curves}</div>',
    ]
    for number, (record, name) in enumerate(zip(records, names, strict=True)):
        sections = _run_sections(record, points, text, data, number, tools="")
        inner = "\n".join(part for part in sections if part)
        body.append(
            f'<details class="run"><summary>{escape(name)} {render_badge(record.state)}</summary>{inner}</details>'
        )
    return body


def _embed_json(data: Sequence[Any]) -> str:
    """JSON inside of a script element: nothing in it can end the element."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


@cache
def _read_asset(name: str) -> str:
    return resources.files("harness.views").joinpath("assets", name).read_text(encoding="utf-8")
