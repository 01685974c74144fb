# SPDX-License-Identifier: Apache-2.0
"""`harness runs`: the runs of a folder, with their state, step and speed."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from harness.cli.completion import complete_run
from harness.cli.output_format import OutputFormat
from harness.run_records.run_list import OUTPUT_DIR, find_run_by_name, list_run_summaries, path_exists
from harness.views import runs as view
from harness.views.style import style_for


def runs(
    folder: Annotated[
        str | None,
        typer.Argument(
            metavar="[FOLDER]",
            help="The folder that `launch.output_dir` names, or one run: its directory, its name or `latest`.",
            show_default=False,
            autocompletion=complete_run,
        ),
    ] = None,
    format: Annotated[OutputFormat, typer.Option("--format", help="Output format.")] = OutputFormat.text,
) -> None:
    """List the runs of a folder, newest first: state, step, loss, speed, start time, attempts.

    Reads only the beginning and the end of each `metrics.jsonl`, so long runs take no longer.

    Example: harness runs runs
    """
    is_default, folder = folder is None, folder or OUTPUT_DIR
    path = Path(folder)
    exists = path_exists(path)
    run_dir = None if exists else find_run_by_name(folder)
    summaries = [] if is_default and not exists else list_run_summaries(run_dir or path)
    print(
        view.runs_as_json(summaries)
        if format is OutputFormat.json
        else view.render_runs(str(run_dir or folder), summaries, style_for(sys.stdout))
    )
