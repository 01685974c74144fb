# SPDX-License-Identifier: Apache-2.0
"""`harness explain`: the page of a finding or of a key, or the diagnosis of a job's log."""

from __future__ import annotations

import os
import shlex
import shutil
from typing import Annotated

import typer

from harness.cli.completion import complete_explained, complete_run
from harness.cli.console import exit_with, print_findings
from harness.cli.log_answer import explain_log
from harness.cli.options import refuse_combined, refuse_unread
from harness.cli.output_format import OutputFormat
from harness.errors import ExitCode
from harness.findings import Finding, Fix

_STALL_SECONDS = 600.0


def explain(
    ids: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[ID|KEY]...",
            help="Ids such as PP001, names, families such as ZR, keys such as `data.packing` (any program's); or "
            "`releases`, or one such as `0.18.2`: what DeepSpeed's releases train wrongly.",
            autocompletion=complete_explained,
        ),
    ] = None,
    list_: Annotated[bool, typer.Option("--list", help="List all findings by id.")] = False,
    all_: Annotated[bool, typer.Option("--all", help="Print every page.")] = False,
    table: Annotated[
        bool, typer.Option("--table", help="Print the table of all gates in Markdown, as in harness/gates/TABLE.md.")
    ] = False,
    log: Annotated[
        list[str] | None,
        typer.Option(
            "--log",
            metavar="FILE|RUN|-",
            help="Find the first cause of a failed job in its log: a log of any DeepSpeed job, a run directory, "
            "`latest` or the name of a run below `runs`, a folder of logs, or `-` for standard input. More names, or a "
            "repeated `--log`, are further logs of the same job.",
            autocompletion=complete_run,
        ),
    ] = None,
    format: Annotated[OutputFormat, typer.Option("--format", help="Output format of `--log`.")] = OutputFormat.text,
    redact: Annotated[
        bool,
        typer.Option(
            "--redact",
            help="With `--log`: leave out tokens, addresses, names of hosts and users, and folders, to post an answer.",
        ),
    ] = False,
    follow: Annotated[
        bool,
        typer.Option(
            "--follow", "-f", help="With `--log FILE`: wait for a running job of any launcher to die, end or stall."
        ),
    ] = False,
    stall_after: Annotated[
        float | None,
        typer.Option(
            "--stall-after",
            metavar="SECONDS",
            min=1,
            max=604800,
            help="With `-f`: seconds without a new line after which a job hangs. [600]",
        ),
    ] = None,
    decide: Annotated[
        bool, typer.Option("--decide", help="With `--log`: the exit code of a failure says what to do next.")
    ] = False,
    exec_: Annotated[
        str | None,
        typer.Option(
            "--exec",
            metavar="COMMAND",
            help="With `--log`: run this for a failure with a decision, in a shell with HARNESS_DECISION, "
            "HARNESS_CAUSE, HARNESS_HOSTS and HARNESS_CHANGES.",
        ),
    ] = None,
) -> None:
    """Explain a finding: the check, DeepSpeed's own behavior, an example, and the settings to use instead; or a key of
    a run spec: its meaning, type and default, and the findings about it. Without a word, list the families of findings.

    With `--log`, explain a failed job: the rank that failed first, its error, the errors that followed, and the fix.

    Exit codes with `--log`: 0 the job ended well or was asked to stop, 1 it failed and the cause is known, 2 no file,
    or one without text, 6 it failed and the cause is unknown, 7 the log shows no failure. With `--decide` in place of
    1: 40 retry, 41 retry elsewhere, 42 change and retry, 43 stop.

    Example: harness explain PP001
    """
    refuse_combined({"--list": list_, "--all": all_, "--table": table}, {"--log": log, "ID|KEY": ids})
    if log:
        follow = follow or "-f" in log  # `--log -f FILE`
        log = [name for name in log if name != "-f"]
        if not follow:
            refuse_unread("is an option of `--follow`", {"--stall-after": stall_after})
        stall_seconds = (stall_after or _STALL_SECONDS) if follow else None
        explain_log([*log, *(ids or [])], format, stall_seconds, exec_ or "", redact=redact, decide=decide)
    options = {
        "--redact": redact,
        "--follow": follow,
        "--stall-after": stall_after,
        "--decide": decide,
        "--exec": exec_,
    }
    refuse_unread("is an option of `--log`", {**options, "--format": format is not OutputFormat.text})
    from harness.check.finding_index import list_rows
    from harness.views import gate_pages
    from harness.views.key_pages import render_foreign_name, render_key, render_term
    from harness.views.release_list import render_releases

    width = min(shutil.get_terminal_size((120, 24)).columns, 120)
    if table:
        print(gate_pages.render_table_markdown(), end="")
        exit_with(ExitCode.OK)
    words = [row.id for row in list_rows()] if all_ else ids or []
    if list_ or not words:
        print(gate_pages.render_table(list_rows(), width) if list_ else gate_pages.render_families(width))
        exit_with(ExitCode.OK)
    terms = [render_term(word, width) for word in words]
    pages = [
        (gate_pages.render_page(word, width) or gate_pages.render_family(word, width))
        or render_key(word, width)
        or render_foreign_name(word, width)
        or render_releases(word, width)
        for word in words
    ]
    pages = ["\n\n".join(filter(None, each)) or None for each in zip(terms, pages, strict=True)]
    unknown = [_explain_unknown_word(word) for word, page in zip(words, pages, strict=True) if page is None]
    if unknown:
        print_findings(unknown, None)
        exit_with(ExitCode.USAGE)
    print(f"\n\n{'-' * min(width, 72)}\n\n".join(page for page in pages if page is not None))


def _explain_unknown_word(word: str) -> Finding:
    from harness.views.gate_pages import unknown_id_finding

    finding = unknown_id_finding(word)
    if not os.path.exists(word):  # noqa: PTH110 - a name that is too long raises nothing here
        return finding
    return finding._replace(fix=Fix(f"`harness explain --log {shlex.quote(word)}` explains the log of a failed job"))
