# SPDX-License-Identifier: Apache-2.0
"""`harness explain`: the page of a finding or of a key, or the diagnosis of a job's log."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from harness.cli.completion import complete_explained, complete_run
from harness.cli.console import exit_with, print_findings
from harness.cli.followed_log_options import find_followed, run_command
from harness.cli.output_format import OutputFormat
from harness.cli.unread_options import refuse_combined, refuse_unread
from harness.errors import ExitCode, UserError
from harness.findings import Finding, Fix

if TYPE_CHECKING:
    from harness.diagnosis.diagnosis_types import Action, Diagnosis

_STALL_SECONDS = 600.0
_CODES: Mapping[Action, ExitCode] = {
    "retry": ExitCode.RETRY,
    "retry elsewhere": ExitCode.RETRY_ELSEWHERE,
    "change and retry": ExitCode.CHANGE_AND_RETRY,
    "stop": ExitCode.STOP,
}


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
        typer.Option(min=1, max=604800, help="With `-f`: seconds without a new line after which a job hangs. [600]"),
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
        _explain_log([*log, *(ids or [])], format, stall_seconds, exec_ or "", redact=redact, decide=decide)
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
    from harness.views.key_pages import render_foreign_name, render_key
    from harness.views.release_page import render_releases
    from harness.views.term_pages import render_term

    width = min(shutil.get_terminal_size((120, 24)).columns, 120)
    if table:
        print(gate_pages.render_table_markdown(), end="")
        exit_with(ExitCode.OK)
    words = [row.id for row in list_rows()] if all_ else ids or []
    if list_ or not words:
        print(gate_pages.render_table(list_rows(), width) if list_ else gate_pages.render_families(width))
        exit_with(ExitCode.OK)
    pages = [
        (render_term(word, width) or gate_pages.render_page(word, width) or gate_pages.render_family(word, width))
        or render_key(word, width)
        or render_foreign_name(word, width)
        or render_releases(word, width)
        for word in words
    ]
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


def _explain_log(
    names: list[str], format: OutputFormat, stall_seconds: float | None, command: str, *, redact: bool, decide: bool
) -> NoReturn:
    from harness.check.log_opinion import review_config
    from harness.diagnosis.decision import decide_action
    from harness.diagnosis.run_diagnosis import diagnose_followed, diagnose_run
    from harness.views import log_diagnosis as view
    from harness.views.style import style_for

    try:
        followed = find_followed(names) if stall_seconds is not None else None
        diagnosis = diagnose_run(*names) if followed is None else diagnose_followed(followed, stall_seconds or 0.0)
    except OSError as error:
        fix = Fix("give a file that can be read, or `-` for standard input")
        message = f"the log `{error.filename or names[0]}` cannot be read: {error.strerror or error}"
        raise UserError([Finding("SP001", "error", message, fix=fix)], ExitCode.USAGE) from None
    except KeyboardInterrupt:
        exit_with(ExitCode.INTERRUPTED)
    decision, cause = decide_action(diagnosis), diagnosis.cause
    code = _CODES[decision.action] if decide and decision is not None else _exit_code_of(diagnosis)
    diagnosis, opinion = review_config(diagnosis, _folders_of(names))
    if redact:
        from harness.views.redaction import redact_answer

        diagnosis, opinion = redact_answer(diagnosis, opinion)
    width = min(shutil.get_terminal_size((120, 24)).columns, 120)
    print(
        view.diagnosis_as_json(diagnosis, opinion)
        if format is OutputFormat.json
        else view.render_diagnosis(diagnosis, style_for(sys.stdout), width, opinion=opinion),
        flush=True,
    )
    if command and decision is not None:
        run_command(command, decision, cause)
    exit_with(code)


def _folders_of(logs: list[str]) -> list[Path]:
    """The folders whose files a log may name: the current one, and those of the logs."""
    paths = [Path(log) for log in logs if log != "-"]
    return list(dict.fromkeys([Path.cwd(), *(path if path.is_dir() else path.parent for path in paths)]))


def _exit_code_of(diagnosis: Diagnosis) -> ExitCode:
    if diagnosis.state in ("empty", "not text"):
        return ExitCode.USAGE
    if diagnosis.state == "failed":
        return ExitCode.FINDINGS if diagnosis.cause else ExitCode.UNKNOWN_CAUSE
    return ExitCode.NO_FAILURE_SEEN if diagnosis.state == "no failure seen" else ExitCode.OK
