# SPDX-License-Identifier: Apache-2.0
"""`harness report`: the HTML report of one run, or of several side by side; with `--watch` while they run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from harness.cli.completion import complete_run
from harness.cli.options import refuse_unread
from harness.errors import ExitCode, UserError, user_error
from harness.findings import Finding, Fix
from harness.run_records.run_list import find_run_dir
from harness.views.report import write_report

NO_ARGS_IS_HELP = True
_MAX_RUNS = 26
_PORT = 8042


def report(
    runs: Annotated[
        list[str],
        typer.Argument(
            metavar="RUN...",
            help="A run directory, the folder of several (its newest), or the name of a run below `runs`. Two or more "
            "are compared.",
            autocompletion=complete_run,
            show_default=False,
        ),
    ],
    output: Annotated[
        str | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="File to write. Default: `report.html` in the run directory, `comparison.html` for several runs.",
        ),
    ] = None,
    watch: Annotated[
        bool,
        typer.Option("--watch", help="Serve the report on localhost and update it while the run trains, until Ctrl-C."),
    ] = False,
    port: Annotated[
        int | None,
        typer.Option(
            "--port",
            metavar="N",
            min=0,
            max=65535,
            help=f"With --watch: port of the server; 0 picks a free one. Default: {_PORT}.",
        ),
    ] = None,
) -> None:
    """Write a self-contained HTML report of a run: curves, speed, planned and measured memory, causes of slowness.

    Works for finished, failed and running runs.

    Example: harness report latest
    """
    if watch:
        refuse_unread("cannot be used with `--watch`, which serves the report", {"--output": output})
    else:
        refuse_unread("needs `--watch`", {"--port": port})
    if len(runs) > _MAX_RUNS:
        raise user_error(
            "SP011", f"{len(runs)} runs are too many to compare", fix=f"name at most {_MAX_RUNS}", code=ExitCode.USAGE
        )
    folders = [find_run_dir(name) for name in runs]
    if watch:
        from harness.views.report.live_server import serve_reports

        serve_reports(folders, _PORT if port is None else port)
        return
    try:
        target = write_report(folders, Path(output) if output else None)
    except OSError as error:
        where = output or str(folders[0])
        reason = (error.strerror or str(error)).lower()
        fix = Fix("choose another file with `--output`")
        raise UserError(
            [Finding("SP030", "error", f"`{where}` cannot be written: {reason}", fix=fix)], ExitCode.USAGE
        ) from None
    print(target)
