"""The report: one HTML file with everything in it, for a browser, a mail or an archive. Needs no network.

Reads run directories alone and changes nothing in them but `report.html`.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Sequence
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from harness.files import replace_file, write_atomically
from harness.records.record import Record, read_record
from harness.views.report.attestation import attestation
from harness.views.report.charts import figures
from harness.views.report.compare import comparison, names_of
from harness.views.report.configuration import configuration, sample
from harness.views.report.header import badge, facts, header
from harness.views.report.html import escape
from harness.views.report.memory import memory_bars, memory_charts, plan_tables
from harness.views.report.ranks import ranks_section
from harness.views.report.speed import median_step
from harness.views.report.timeline import timeline
from harness.views.report.training import compared_charts, learning_charts, speed_charts
from harness.views.report.trouble import trouble
from harness.views.report.why_slow import why_slow

MOST_BYTES = 1_900_000
_POINTS, _TEXT = 900, 100_000
_NO_SCRIPT = "Curves are drawn by a script, which does not run here; below each title stand its figures."


def write(runs: Path | Sequence[Path], output: Path | None = None) -> Path:
    """Write the report of one or more run directories, by default to the (first) one's `report.html`, or where there
    are several to its `comparison.html`, and return its path. Raises OSError.
    """
    folders = [runs] if isinstance(runs, Path) else list(runs)
    text = page([read_record(folder) for folder in folders])
    if output is not None:
        write_atomically(output, text)
        return output
    target = folders[0] / ("report.html" if len(folders) == 1 else "comparison.html")
    replace_file(target, text)  # a link there is replaced: who made the directory must not choose what is overwritten
    return target


def page(records: Sequence[Record], *, live: str = "") -> str:
    """The whole document, below two megabytes however long the run was. `live` is its version at the server that it
    came from, which it then asks for newer ones.
    """
    share = max(1, len(records))
    points, text = max(60, _POINTS // share), _TEXT // share
    made = _page(records, points, text, live=live)
    while len(made.encode()) > MOST_BYTES and points > 10:
        points, text = points // 2, text // 4
        made = _page(records, points, text, live=live)
    return made


def _page(records: Sequence[Record], points: int, text: int, *, live: str) -> str:
    data: list[dict[str, Any]] = []
    if len(records) == 1:
        body = [header(records[0]), *_run(records[0], points, text, data)]
    else:
        body = _compared(records, points, text, data)
    title = " against ".join(record.name for record in records[:3])
    script = _script()
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'; img-src data:; "
    policy += "base-uri 'none'; form-action 'none'; connect-src " + ("'self'" if live else "'none'")
    asks = f' data-live="{escape(live, quote=True)}"' if live else ""
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)} - harness report</title><style>{_style()}</style></head>\n"
        f'<body{asks}><main>\n<noscript><p class="card">{_NO_SCRIPT}</p></noscript>\n'
        + "\n".join(section for section in body if section)
        + f'\n</main>\n<script type="application/json" id="charts">{_embedded(data)}</script>'
        + f"\n<script>{script}</script></body></html>\n"
    )


def _run(record: Record, points: int, text: int, data: list[dict[str, Any]]) -> list[str]:
    """Everything about one run; what its charts draw is added to `data`."""
    trained = bool(record.of("step") or record.of("eval"))
    learning, drawn = figures(learning_charts(record), points, len(data)) if trained else ("", [])
    data += drawn
    speed, drawn = figures(speed_charts(record), points, len(data)) if trained else ("", [])
    data += drawn
    memory, drawn = figures(memory_charts(record), points, len(data))
    data += drawn
    bars = memory_bars(record)
    planned = plan_tables(record)
    return [
        facts(record),
        trouble(record),
        f'<h2>Training</h2><div class="grid2">{learning}</div>' if learning else "",
        f'<h2>Speed</h2><div class="grid2">{speed}</div>{median_step(record)}' if speed else "",
        f'<h2>Memory, planned and measured</h2><div class="grid2">{bars}{memory}</div>{planned}'
        if bars or planned
        else "",
        ranks_section(record),
        timeline(record),
        attestation(record),
        sample(record, text),
        configuration(record, text),
        why_slow(record),
    ]


def _compared(records: Sequence[Record], points: int, text: int, data: list[dict[str, Any]]) -> list[str]:
    """What is beside each other first, then each run by itself, folded."""
    names = names_of(records)
    curves, drawn = figures([c for c in compared_charts(records, names) if any(s.points for s in c.series)], points)
    data += drawn
    words = f"{len(records)} runs compared"
    body = [
        f"<header><h1>{words}</h1></header>",
        comparison(records),
        f'<h2>Curves</h2><div class="grid2">{curves}</div>',
    ]
    for record, name in zip(records, names, strict=True):
        inner = "\n".join(part for part in _run(record, points, text, data) if part)
        body.append(f'<details class="run"><summary>{escape(name)} {badge(record.state)}</summary>{inner}</details>')
    return body


def _embedded(data: list[dict[str, Any]]) -> str:
    """JSON inside of a script element: nothing in it can end the element."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


@cache
def _asset(name: str) -> str:
    return resources.files("harness.views").joinpath("assets", name).read_text(encoding="utf-8")


def _script() -> str:
    return _asset("uPlot.iife.min.js") + "\n" + _asset("report.js")


def _style() -> str:
    return _asset("uPlot.min.css") + _asset("report.css")
