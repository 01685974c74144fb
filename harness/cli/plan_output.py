# SPDX-License-Identifier: Apache-2.0
"""The output of `harness plan`: the text or the JSON, the spec that a search found, the picture."""

from __future__ import annotations

import json
import shlex
import shutil
import sys
from collections import ChainMap
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from harness.check.auto_plan import SearchResult
from harness.check.check_file import CheckedFile
from harness.check.fit_table import FitTable
from harness.check.plan_report import PlanReport
from harness.cli.console import exit_with, print_findings
from harness.cli.output_format import OutputFormat
from harness.cli.plan_questions import Answer, PlanOptions
from harness.plan.plan_json import plan_json
from harness.plan.plan_usage import usage_error
from harness.plan.planner import Plan
from harness.spec.yaml_text import spec_as_yaml
from harness.views import plan_search as search_view
from harness.views.plan import format_next_after_search, format_next_command, format_search_command, render_plan
from harness.views.plan_page import render_plan_page
from harness.views.plan_plot import render_memory_svg
from harness.views.plan_screen import INPUT_FINDINGS
from harness.views.style import style_for


def exit_with_answer(answer: Answer, format: OutputFormat, write: str | None) -> NoReturn:
    """Print the answer, write its spec, and end the command."""
    print(json.dumps(answer.body, indent=2) if format is OutputFormat.json else answer.text)
    _write_answer(answer, write)
    exit_with(answer.code)


def _write_answer(answer: Answer, write: str | None) -> None:
    """The spec of an answer in the file of `--write`, with a line on stderr."""
    if write is None:
        return
    if answer.spec is None:
        raise usage_error("there is nothing to write: no settings were found", "leave `--write` out")
    write_text(write, spec_as_yaml(answer.spec, "# Found by `harness plan`.\n"))
    print(f"Wrote {write}. Next: harness validate-config {shlex.quote(write)}", file=sys.stderr)


def choose_next_command(planned: Plan, searched: SearchResult | None, options: PlanOptions, spec: str) -> str:
    """The command that comes after this plan; empty where none does. `spec` is the file, or the name of the request."""
    if planned.device is not None and not planned.device.starts_ranks:
        return ""
    if searched is not None or options.spec is None:
        return format_next_after_search(options.write) if searched is not None and searched.best is not None else ""
    if planned.run.kind != "spec" or (planned.fit.verdict is False and planned.time is None):
        return ""  # a search needs the time of a step
    if planned.fit.verdict is False:
        return format_search_command(spec, options.hostfile, options.overrides, here=options.here)
    return format_next_command(planned.run, spec, options.hostfile, options.overrides)


def print_report(
    report: PlanReport, checked: CheckedFile, format: OutputFormat, *, long: bool, answers: Sequence[Answer] = ()
) -> None:
    """The plan on stdout, with answers about it. On stderr, in full, the findings for which the screen has no line."""
    everything = long or format is OutputFormat.json
    in_full = [finding for finding in report.findings if everything or finding.gate in INPUT_FINDINGS]
    if in_full:
        print_findings(in_full, checked.lines_of)
    if format is OutputFormat.json:
        extra = ChainMap(*(dict(answer.body) for answer in answers))
        print(json.dumps({**search_view.report_as_dict(report), **extra}, indent=2))
        return
    print(render_plan(report, style_for(sys.stdout), shutil.get_terminal_size((110, 24)).columns, long=long))
    for answer in answers:
        print(answer.text)


def write_files(report: PlanReport, write: str | None, plot: str | None) -> None:
    """The spec of the search and the picture, with a line on stderr for each."""
    searched = report.searched
    if write is not None:
        if searched is None:
            raise usage_error("there is nothing to write: no settings were found", "add `--search`")
        if searched.best is None:
            print(f"{write} was not written: nothing fits and passes the gates.", file=sys.stderr)
        else:
            head = f"# {searched.best.title}: found by `harness plan --search`.\n"
            write_text(write, spec_as_yaml(searched.raw, head))
            print(f"Wrote {write}. Next: harness validate-config {shlex.quote(write)}", file=sys.stderr)
    if plot is not None:
        if not report.plan.alternatives:
            raise usage_error(
                "there is nothing to draw: the plan has no memory", "give the model, the ranks and the batch"
            )
        write_text(plot, render_memory_svg(plan_json(report.plan)))
        print(f"Wrote {plot}", file=sys.stderr)


def write_page(report: PlanReport, tables: Sequence[FitTable], html: str | None) -> None:
    """The page of `--html`, with a line on stderr. Raises UserError where there is nothing to show."""
    if html is None:
        return
    if not tables or report.plan.memory is None:
        raise usage_error(
            "there is nothing to show: the plan has no memory", "give the model by name, the kind of GPU and the batch"
        )
    write_text(html, render_plan_page(report, tables))
    print(f"Wrote {html}", file=sys.stderr)


def write_text(file: str, text: str) -> None:
    """Raises UserError where the file cannot be written."""
    try:
        Path(file).write_text(text, encoding="utf-8")
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise usage_error(f"`{file}` cannot be written: {reason}", "name a file in a folder that exists") from None
