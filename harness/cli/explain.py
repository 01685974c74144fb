# SPDX-License-Identifier: Apache-2.0
"""`harness explain`: the page of a finding or of a key, or the diagnosis of a job's log."""

from __future__ import annotations

import shutil
import sys
from typing import Annotated, NoReturn

import typer

from harness.cli.completion import complete_explained, complete_run
from harness.cli.console import exit_with, print_findings
from harness.cli.output_format import OutputFormat
from harness.errors import ExitCode, UserError
from harness.findings import Finding, Fix


def explain(
    ids: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[ID|KEY]...",
            help="Ids such as PP001, names, families such as ZR, or keys such as `data.packing`, also by the names of "
            "DeepSpeed and trainers.",
            autocompletion=complete_explained,
        ),
    ] = None,
    list_: Annotated[bool, typer.Option("--list", help="List all findings by id.")] = False,
    all_: Annotated[bool, typer.Option("--all", help="Print every page.")] = False,
    table: Annotated[
        bool,
        typer.Option("--table", help="Print the table of all gates in Markdown, as in harness/gates/TABLE.md."),
    ] = False,
    log: Annotated[
        str | None,
        typer.Option(
            "--log",
            metavar="FILE|RUN|-",
            help="Find the first cause of a failed job in its log: a log of any DeepSpeed job, a run directory, "
            "`latest` or the name of a run below `runs`, a folder of logs, or `-` for standard input.",
            autocompletion=complete_run,
        ),
    ] = None,
    format: Annotated[OutputFormat, typer.Option("--format", help="Output format of `--log`.")] = OutputFormat.text,
) -> None:
    """Explain a finding: the check, DeepSpeed's own behavior, an example, and the settings to use instead; or a key of
    a run spec: its meaning, type and default, and the findings about it. Without a word, list the families of findings.

    With `--log`, explain a failed job: the rank that failed first, its error, the errors that followed, and the fix.

    Exit codes with `--log`: 0 the cause is known or the job ended well, 1 the cause is unknown, 2 no file, an empty
    or a compressed one.

    Example: harness explain PP001
    """
    if log is not None:
        _explain_log(log, format)
    from harness.check.finding_index import list_rows
    from harness.views import gate_pages
    from harness.views.key_pages import render_foreign_name, render_key

    width = min(shutil.get_terminal_size((120, 24)).columns, 120)
    if table:
        print(gate_pages.render_table_markdown(), end="")
        exit_with(ExitCode.OK)
    words = [row.id for row in list_rows()] if all_ else ids or []
    if list_ or not words:
        print(gate_pages.render_table(list_rows(), width) if list_ else gate_pages.render_families(width))
        exit_with(ExitCode.OK)
    pages = [
        gate_pages.render_page(word, width)
        or gate_pages.render_family(word, width)
        or render_key(word, width)
        or render_foreign_name(word, width)
        for word in words
    ]
    unknown = [gate_pages.unknown_id_finding(word) for word, page in zip(words, pages, strict=True) if page is None]
    if unknown:
        print_findings(unknown, None)
        exit_with(ExitCode.USAGE)
    print(f"\n\n{'-' * min(width, 72)}\n\n".join(page for page in pages if page is not None))


def _explain_log(name: str, format: OutputFormat) -> NoReturn:
    from harness.diagnosis.run_diagnosis import diagnose_run
    from harness.views import log_diagnosis as view
    from harness.views.style import style_for

    try:
        diagnosis = diagnose_run(name)
    except OSError as error:
        fix = Fix("give a file that can be read, or `-` for standard input")
        message = f"the log `{name}` cannot be read: {error.strerror or error}"
        raise UserError([Finding("SP001", "error", message, fix=fix)], ExitCode.USAGE) from None
    width = min(shutil.get_terminal_size((120, 24)).columns, 120)
    print(
        view.diagnosis_as_json(diagnosis)
        if format is OutputFormat.json
        else view.render_diagnosis(diagnosis, style_for(sys.stdout), width)
    )
    if diagnosis.state in ("empty", "not text"):
        exit_with(ExitCode.USAGE)
    exit_with(ExitCode.OK if diagnosis.cause or diagnosis.state == "completed" else ExitCode.FINDINGS)
