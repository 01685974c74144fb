# SPDX-License-Identifier: Apache-2.0
"""`harness preflight`: check every host of the hostfile before a launch."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from harness.cli.console import ConsoleLog, exit_rejected, exit_with, print_findings
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
from harness.cli.output_format import OutputFormat
from harness.launching.hosts import ssh
from harness.launching.programs.preflight import PreflightResult, run_preflight
from harness.launching.setup.launch_request import LaunchRejected, LaunchRequest
from harness.spec.host_selection import HostSelection
from harness.views import preflight as view
from harness.views.style import style_for

NO_ARGS_IS_HELP = True


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
        float, typer.Option("--timeout", metavar="SECONDS", min=1.0, max=600.0, help="Time limit of one host.")
    ] = ssh.HOST_TIMEOUT_SECONDS,
    fan_out: Annotated[
        int, typer.Option("--fan-out", metavar="N", min=1, max=1024, help="Hosts contacted at the same time.")
    ] = ssh.FAN_OUT,
    allow_local_code: AllowCodeOption = False,
    allreduce: Annotated[
        bool, typer.Option("--allreduce", help="Then start the ranks and time an all-reduce over all of them.")
    ] = False,
    format: Annotated[OutputFormat, typer.Option("--format", help="Output format.")] = OutputFormat.text,
) -> None:
    """Check every host over ssh: versions, devices, memory, disks, clock, network. Trains nothing.

    A script that needs only Python's standard library runs on all hosts at once and leaves nothing there. Gates compare
    its answers with the spec and its plan.

    Exit codes: 0 the run can start, 1 errors in the spec, 4 a host cannot run it.

    Example: harness preflight ds_configs/demo.yaml --hostfile hostfiles/two-node-16gpu
    """
    selection = HostSelection(hosts, slurm, include, exclude, num_nodes, num_gpus)
    request = LaunchRequest(spec, tuple(overrides or ()), hostfile, selection, allow_local_code=allow_local_code)
    result = run_preflight(request, ConsoleLog(), timeout_seconds=timeout, fan_out=fan_out, allreduce=allreduce)
    if isinstance(result, LaunchRejected):
        exit_rejected(result)
    _print_result(result, format)
    exit_with(result.code)


def _print_result(result: PreflightResult, format: OutputFormat) -> None:
    survey, report = result.survey, result.report
    if format is OutputFormat.json:
        print(view.survey_as_json(survey, report.findings, result.code, result.allreduce))
        return
    style = style_for(sys.stdout)
    print("\n".join([view.render_survey(survey, style), *view.allreduce_lines(result.allreduce)]))
    print()
    sys.stdout.flush()
    if report.findings:
        print_findings(report.findings, result.source.lines)
    print(view.format_totals(survey, report, result.allreduce, style))
