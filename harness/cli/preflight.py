"""`harness preflight`: every host of the hostfile is asked what it has, before a job is started on it."""

from __future__ import annotations

import sys
from enum import StrEnum
from functools import partial
from typing import Annotated

import typer

from harness.cli.asking import judged, network_of, say_what_is_unresolved
from harness.cli.common import check_file, exit_with, print_findings, stop_on_errors
from harness.cli.options import (
    AllowCodeOption,
    ExcludeOption,
    HostfileOption,
    HostsOption,
    IncludeOption,
    NumGpusOption,
    NumNodesOption,
    SetOption,
    SlurmOption,
    SpecArgument,
)
from harness.errors import Exit, Refused
from harness.facts.survey import Survey
from harness.findings import Finding, Fix, Report
from harness.launching import remote
from harness.launching.allreduce import findings, try_allreduce
from harness.launching.here import look_here
from harness.launching.ops import needed_ops
from harness.launching.preflight import Asking, take_survey
from harness.launching.refusals import refusals
from harness.plan.choices.choosing import with_choices
from harness.render import render
from harness.spec.host_selection import Selection
from harness.views import preflight as view
from harness.views import text
from harness.views.style import style_for

NO_ARGS_IS_HELP = True


class Format(StrEnum):
    """Output formats."""

    text = "text"
    json = "json"


def preflight(
    spec: SpecArgument,
    overrides: SetOption = None,
    hostfile: HostfileOption = None,
    hosts: HostsOption = None,
    slurm: SlurmOption = False,
    include: IncludeOption = "",
    exclude: ExcludeOption = "",
    num_nodes: NumNodesOption = None,
    num_gpus: NumGpusOption = None,
    timeout: Annotated[
        float, typer.Option("--timeout", min=1.0, max=600.0, help="Seconds that one host may take to answer.")
    ] = remote.LIMIT_SECONDS,
    fan_out: Annotated[
        int, typer.Option("--fan-out", min=1, max=1024, help="Hosts that are asked at the same time.")
    ] = remote.FAN_OUT,
    allow_local_code: AllowCodeOption = False,
    allreduce: Annotated[
        bool,
        typer.Option("--allreduce", help="When all is well, start the ranks for a sum over all of them, and time it."),
    ] = False,
    format: Annotated[Format, typer.Option("--format", help="How the answers are printed.")] = Format.text,
) -> None:
    """Ask every host over ssh what it has: versions, devices, memory, disks, clock, network. Trains nothing.

    One script of the standard library runs on all hosts at once; nothing is left there. What it finds out is judged by
    gates, against the spec and its plan.

    Exit codes: 0 the run can start, 1 errors in the spec, 4 a host cannot run it.

    Example: harness preflight ds_configs/demo.yaml --hostfile hostfiles/two-node-16gpu
    """
    chosen = Selection(hosts, slurm, include, exclude, num_nodes, num_gpus)
    check = partial(check_file, spec, overrides=overrides or (), hostfile=hostfile, selection=chosen)
    checked = check(allow_code=allow_local_code)
    run = stop_on_errors(checked, "No host was asked")
    if run.cluster is None:
        fix = Fix("give `--hostfile FILE`, or set `launch.hostfile`; for this machine alone: harness doctor")
        raise Refused(
            [Finding("HO005", "error", "no hostfile is given, so there is nobody to ask", fix=fix)], Exit.USAGE
        )
    here = look_here((h.name for h in run.cluster.hosts), run.spec.launch.env)
    say_what_is_unresolved(here)
    run = with_choices(run, here.folder)
    config = render(run).config
    ops = needed_ops(config, accelerated=here.accelerated)
    survey = take_survey(run, here, ops, Asking(timeout, fan_out, lambda line: print(line, file=sys.stderr)))
    report = judged(checked, run, survey)
    summed = None
    if allreduce and report.ok:  # its ranks start as those of a run do
        report = report._replace(findings=(*report.findings, *refusals(run, here, here.folder)))
    if allreduce and report.ok:
        print(f"starting {run.degrees.world} ranks for an all-reduce", file=sys.stderr)
        summed = try_allreduce(run, config, here, network_of(survey))
        report = report._replace(findings=(*report.findings, *findings(summed)))
    code = Exit.OK if report.ok else Exit.PREFLIGHT
    if format is Format.json:
        print(view.as_json(survey, report.findings, code, summed))
    else:
        print("\n".join([view.text(survey, style_for(sys.stdout)), *view.bandwidth(summed)]))
        print()
        sys.stdout.flush()
        if report.findings:
            print_findings(report.findings, checked.source)
        print(_last_words(survey, report, summed is not None))
    exit_with(code)


def _last_words(survey: Survey, report: Report, summed: bool) -> str:
    summary = text.summary([report], style_for(sys.stdout))
    hosts = len(survey.hosts)
    answered = f"{len(survey.answered)} of {hosts} host{'s' if hosts > 1 else ''} answered"
    return f"{summary}. {answered}. {'Nothing was trained' if summed else 'No rank was started'}"
