# SPDX-License-Identifier: Apache-2.0
"""`harness runs`: the runs of a folder, with their state, step and speed."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from harness.cli.completion import complete_run
from harness.cli.options import refuse_unread
from harness.cli.output_format import OutputFormat
from harness.errors import ExitCode, UserError, user_error
from harness.run_records.run_list import OUTPUT_DIR, find_run_by_name, find_run_dir, list_run_summaries, path_exists
from harness.run_records.summary import write_remarks
from harness.views import runs as view
from harness.views.style import style_for

_NOTHING = "-"


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
    format: Annotated[OutputFormat | None, typer.Option("--format", help="Output format.")] = None,
    html: Annotated[
        str | None,
        typer.Option(
            "--html",
            metavar="FILE",
            help="Write all runs as one page that needs no network: sort, filter, compare the curves of ticked runs.",
        ),
    ] = None,
    tags: Annotated[
        str | None,
        typer.Option("--tags", metavar="A,B", help="Tag the run, instead of its tags so far; `-` removes them."),
    ] = None,
    note: Annotated[str | None, typer.Option("--note", metavar="TEXT", help="Note on the run; `-` removes it.")] = None,
) -> None:
    """List the runs of a folder, newest first: state, step, loss, speed, start time, attempts. Launches that resumed
    each other are one run; a branch from an older step with other settings stands below it.

    Reads only the beginning and the end of each `metrics.jsonl`, so long runs take no longer.

    Example: harness runs runs
    """
    if html is not None:
        refuse_unread("cannot be used with `--html`, which writes a page", {"--format": format})
    if tags is not None or note is not None:
        refuse_unread(
            "cannot be used with `--tags` and `--note`, which change a run", {"--format": format, "--html": html}
        )
        _remark(folder, tags, note)
        return
    is_default, folder = folder is None, folder or OUTPUT_DIR
    path = Path(folder)
    exists = path_exists(path)
    run_dir = None if exists else find_run_by_name(folder)
    if html is not None:
        _write_page(run_dir or path, html)
        return
    summaries = [] if is_default and not exists else list_run_summaries(run_dir or path)
    print(
        view.runs_as_json(summaries)
        if format is OutputFormat.json
        else view.render_runs(str(run_dir or folder), summaries, style_for(sys.stdout))
    )


def _write_page(folder: Path, output: str) -> None:
    from harness.views.report.runs_page import write_runs_page

    try:
        print(write_runs_page(folder, Path(output)))
    except OSError as error:
        raise _unwritable_error(output, error, "choose another file with `--html`") from None


def _remark(name: str | None, tags: str | None, note: str | None) -> None:
    """Write tags and note of one run, into each launch of its training, and print its directory."""
    if name is None:
        raise typer.BadParameter(
            "name the run, such as `latest`", param_hint="--tags" if tags is not None else "--note"
        )
    run_dir = find_run_dir(name)
    try:
        words = [tag for part in (tags or "").split(",") if (tag := part.strip()) not in ("", _NOTHING)]
        for part in _launches_of_training(run_dir):
            write_remarks(part, None if tags is None else words, "" if note == _NOTHING else note)
    except OSError as error:
        raise _unwritable_error(
            str(run_dir), error, "change the owner of the run directory, or tag a run of yours"
        ) from None
    print(run_dir)


def _launches_of_training(run_dir: Path) -> list[Path]:
    for run in list_run_summaries(run_dir.parent):
        if run_dir.resolve().name in run.parts:
            return [run_dir.parent / name for name in run.parts]
    return [run_dir]


def _unwritable_error(where: str, error: OSError, fix: str) -> UserError:
    message = f"`{where}` cannot be written: {(error.strerror or str(error)).lower()}"
    return user_error("SP030", message, fix=fix, code=ExitCode.USAGE)
