"""`harness preflight`: every host of the hostfile is asked what it has, before a job is started on it."""

from __future__ import annotations

import sys
from enum import StrEnum
from functools import partial
from typing import Annotated

import typer

from harness.check.check_file import check_file
from harness.cli.console import exit_on_errors, exit_with, print_findings
from harness.cli.host_checks import check_survey, network_from_survey, warn_unresolved_hosts
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
from harness.errors import ExitCode, UserError
from harness.facts.required_ops import required_ops
from harness.findings import Finding, Fix, Report
from harness.hostinfo.host_survey import Survey
from harness.launching.hosts import ssh
from harness.launching.hosts.local_host import inspect_local_host
from harness.launching.hosts.preflight_survey import SurveyOptions, survey_hosts
from harness.launching.programs.allreduce_check import allreduce_findings, run_allreduce
from harness.launching.setup.launch_checks import check_launch
from harness.plan.tuned_defaults.rules import with_tuned_defaults
from harness.render import render_ds_config
from harness.spec.host_selection import HostSelection
from harness.views import findings_text as text
from harness.views import preflight as view
from harness.views.style import style_for

NO_ARGS_IS_HELP = True


class OutputFormat(StrEnum):
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
    ] = ssh.HOST_TIMEOUT_SECONDS,
    fan_out: Annotated[
        int, typer.Option("--fan-out", min=1, max=1024, help="Hosts that are asked at the same time.")
    ] = ssh.FAN_OUT,
    allow_local_code: AllowCodeOption = False,
    allreduce: Annotated[
        bool,
        typer.Option("--allreduce", help="When all is well, start the ranks for a sum over all of them, and time it."),
    ] = False,
    format: Annotated[OutputFormat, typer.Option("--format", help="How the answers are printed.")] = OutputFormat.text,
) -> None:
    """Ask every host over ssh what it has: versions, devices, memory, disks, clock, network. Trains nothing.

    One script of the standard library runs on all hosts at once; nothing is left there. What it finds out is judged by
    gates, against the spec and its plan.

    Exit codes: 0 the run can start, 1 errors in the spec, 4 a host cannot run it.

    Example: harness preflight ds_configs/demo.yaml --hostfile hostfiles/two-node-16gpu
    """
    chosen = HostSelection(hosts, slurm, include, exclude, num_nodes, num_gpus)
    check = partial(check_file, spec, overrides=overrides or (), hostfile=hostfile, selection=chosen)
    checked = check(allow_code=allow_local_code)
    run = exit_on_errors(checked, "No host was asked")
    if run.cluster is None:
        fix = Fix("give `--hostfile FILE`, or set `launch.hostfile`; for this machine alone: harness doctor")
        raise UserError(
            [Finding("HO005", "error", "no hostfile is given, so there is nobody to ask", fix=fix)], ExitCode.USAGE
        )
    here = inspect_local_host((h.name for h in run.cluster.hosts), run.spec.launch.env)
    warn_unresolved_hosts(here)
    run = with_tuned_defaults(run, here.cwd)
    config = render_ds_config(run).config
    ops = required_ops(config, accelerated=here.accelerated)
    survey = survey_hosts(run, here, ops, SurveyOptions(timeout, fan_out, lambda line: print(line, file=sys.stderr)))
    report = check_survey(checked, run, survey)
    summed = None
    if allreduce and report.ok:  # its ranks start as those of a run do
        report = report._replace(findings=(*report.findings, *check_launch(run, here, here.cwd)))
    if allreduce and report.ok:
        print(f"starting {run.parallel_dims.world_size} ranks for an all-reduce", file=sys.stderr)
        summed = run_allreduce(run, config, here, network_from_survey(survey))
        report = report._replace(findings=(*report.findings, *allreduce_findings(summed)))
    code = ExitCode.OK if report.ok else ExitCode.PREFLIGHT
    if format is OutputFormat.json:
        print(view.survey_as_json(survey, report.findings, code, summed))
    else:
        print("\n".join([view.render_survey(survey, style_for(sys.stdout)), *view.allreduce_lines(summed)]))
        print()
        sys.stdout.flush()
        if report.findings:
            print_findings(report.findings, checked.source)
        print(_format_totals(survey, report, summed is not None))
    exit_with(code)


def _format_totals(survey: Survey, report: Report, summed: bool) -> str:
    summary = text.format_summary([report], style_for(sys.stdout))
    hosts = len(survey.hosts)
    answered = f"{len(survey.reachable_hosts)} of {hosts} host{'s' if hosts > 1 else ''} answered"
    return f"{summary}. {answered}. {'Nothing was trained' if summed else 'No rank was started'}"
