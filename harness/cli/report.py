"""`harness report`: the HTML report of a run directory."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from harness.errors import Exit, Refused
from harness.findings import Finding, Fix
from harness.views.report import write

NO_ARGS_IS_HELP = True
_MARKS = ("spec.resolved.json", "metrics.jsonl", "spec.yaml")


def report(
    run_dir: Annotated[
        str, typer.Argument(metavar="RUN_DIR", help="A run directory, or the folder of several: the newest.")
    ],
    output: Annotated[
        str | None,
        typer.Option("--output", "-o", metavar="FILE", help="Where to write it. Default: RUN_DIR/report.html."),
    ] = None,
) -> None:
    """Write one self-contained HTML file about a run: curves, memory planned and measured, configuration.

    Works on finished, failed and running runs.

    Example: harness report runs/latest
    """
    folder = find_run_dir(Path(run_dir))
    try:
        target = write(folder, Path(output) if output else None)
    except OSError as error:
        where = output or str(folder / "report.html")
        reason = (error.strerror or str(error)).lower()
        fix = Fix("choose another file with `--output`")
        raise Refused(
            [Finding("SP030", "error", f"`{where}` cannot be written: {reason}", fix=fix)], Exit.USAGE
        ) from None
    print(target)


def find_run_dir(path: Path) -> Path:
    """The run directory that is meant. Raises Refused when there is none."""
    for folder in (path, path / "latest"):
        if any((folder / mark).is_file() for mark in _MARKS):
            return folder
    what = "is not a run directory" if path.is_dir() else "is not a folder" if path.exists() else "does not exist"
    fix = Fix("name a folder that `harness launch` made, such as `runs/latest`")
    raise Refused([Finding("SP031", "error", f"`{path}` {what}", fix=fix)], Exit.USAGE)
