# SPDX-License-Identifier: Apache-2.0
"""`harness runs`: the runs of a folder, with their state, step and speed."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from harness.cli.output_format import OutputFormat
from harness.run_records.run_list import OUTPUT_DIR, list_run_summaries
from harness.views import runs as view
from harness.views.style import style_for


def runs(
    folder: Annotated[
        str, typer.Argument(metavar="[FOLDER]", help="The folder that `launch.output_dir` names.", show_default=False)
    ] = OUTPUT_DIR,
    format: Annotated[OutputFormat, typer.Option("--format", help="Output format.")] = OutputFormat.text,
) -> None:
    """List the runs of a folder, newest first: state, step, loss, speed, start time, attempts.

    Reads only the beginning and end of each `metrics.jsonl`, so that long runs take no longer.

    Example: harness runs runs
    """
    summaries = list_run_summaries(Path(folder))
    print(
        view.runs_as_json(summaries)
        if format is OutputFormat.json
        else view.render_runs(folder, summaries, style_for(sys.stdout))
    )
