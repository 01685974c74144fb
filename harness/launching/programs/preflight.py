# SPDX-License-Identifier: Apache-2.0
"""`harness preflight`: survey every host of a run, check the answers, and all-reduce over all ranks if requested."""

from __future__ import annotations

from dataclasses import dataclass

from harness.check.check_file import check_file, check_survey
from harness.check.finding_places import place_findings
from harness.errors import ExitCode, UserError
from harness.findings import Finding, Fix, Report
from harness.hostinfo.host_survey import Survey
from harness.launching.hosts.local_host import inspect_local_host, unresolved_names_note
from harness.launching.hosts.preflight_survey import SurveyOptions, survey_hosts
from harness.launching.programs.allreduce_check import AllReduceResult, allreduce_findings, run_allreduce
from harness.launching.setup.launch_checks import check_launch
from harness.launching.setup.launch_plan import Network, ops_of_run
from harness.launching.setup.launch_request import LaunchLog, LaunchRejected, LaunchRequest
from harness.launching.setup.store_checks import check_stores
from harness.render import render_with_tuned_defaults
from harness.spec.parse.source import Source


@dataclass(frozen=True, slots=True)
class PreflightResult:
    """The hosts' answers and the findings about them. `allreduce` is None where no rank was started."""

    survey: Survey
    report: Report
    source: Source
    allreduce: AllReduceResult | None

    @property
    def code(self) -> ExitCode:
        """The exit code."""
        return ExitCode.OK if self.report.ok else ExitCode.PREFLIGHT


def run_preflight(
    request: LaunchRequest, log: LaunchLog, *, timeout_seconds: float, fan_out: int, allreduce: bool
) -> PreflightResult | LaunchRejected:
    """Trains nothing and leaves nothing on a host. Raises UserError where no hosts are given."""
    checked = check_file(
        request.spec,
        overrides=request.overrides,
        hostfile=request.hostfile,
        selection=request.hosts,
        allow_code=request.allow_local_code,
    )
    run, source = checked.run, checked.source
    if run is None or source is None or not checked.report.ok:
        return LaunchRejected(
            checked.report.findings, checked.lines_of, checked.code, "No host was contacted", checked.report
        )
    if checked.report.findings:
        log.on_findings(checked.report.findings, checked.lines_of)
    if run.cluster is None:
        fix = Fix("give `--hostfile FILE` or `--hosts A:N,B:N`; for this machine alone: harness doctor")
        message = "no hosts are given, so there is none to check"
        raise UserError([Finding("HO005", "error", message, fix=fix)], ExitCode.USAGE)
    cluster = run.cluster
    local_host = inspect_local_host((host.name for host in cluster.hosts), run.spec.launch.env)
    if note := unresolved_names_note(local_host):
        log.on_note(note)
    run, rendered = render_with_tuned_defaults(run, local_host.cwd)
    config = rendered.config
    ops = ops_of_run(run, config, accelerated=local_host.accelerated)
    options = SurveyOptions(timeout_seconds, fan_out, log.on_note)
    survey = survey_hosts(cluster, run.spec.launch, run.spec.zero, local_host, ops, options)
    report = check_survey(run, source, survey)
    stores = place_findings(check_stores(run.spec.store_urls, run.spec.launch.env, read_only=True), source)
    report = report._replace(findings=(*report.findings, *stores))
    if allreduce and report.ok:  # its ranks start as those of a run do
        report = report._replace(findings=(*report.findings, *check_launch(run, local_host, local_host.cwd)))
    if not allreduce or not report.ok:
        return PreflightResult(survey, report, source, None)
    log.on_note(f"starting {run.parallel_dims.world_size} ranks for an all-reduce")
    result = run_allreduce(run, config, local_host, Network.from_survey(survey))
    report = report._replace(findings=(*report.findings, *allreduce_findings(result)))
    return PreflightResult(survey, report, source, result)
