"""The hosts of a run, asked and judged: what `harness preflight` and `harness launch` share. Starts nothing."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from harness.check.check_file import CheckedFile
from harness.cli.console import exit_with, print_findings
from harness.errors import ExitCode, UserError
from harness.facts.required_ops import required_ops
from harness.findings import Report
from harness.hostinfo.host_survey import Survey
from harness.hostinfo.machine import NAME_LOOKUP_SECONDS
from harness.launching.hosts.local_host import LocalHost
from harness.launching.hosts.preflight_survey import SurveyOptions, survey_hosts
from harness.launching.setup.launch_plan import Network
from harness.plan.resolved_run import ResolvedRun


def check_survey(checked: CheckedFile, run: ResolvedRun, survey: Survey) -> Report:
    """What the gates have to say about the hosts' answers, and only about these."""
    from harness.gates import check_run
    from harness.gates.registry import all_gates

    if checked.source is None:
        raise UserError(checked.report.findings, checked.code)
    asking = {gate.id for gate in all_gates() if "the hosts' answers" in gate.needs}
    accelerator = "cuda" if survey.has_accelerators else "cpu"
    report = check_run(run, checked.source, launching=True, accelerator=accelerator, survey=survey)
    return Report(report.file, tuple(f for f in report.findings if f.gate in asking), len(asking))


def require_healthy_hosts(checked: CheckedFile, run: ResolvedRun, here: LocalHost, config: Mapping[str, Any]) -> Survey:
    """Ask the hosts before a launch. What stops the run is printed and ends the program (exit code 4)."""
    asking = SurveyOptions(log=lambda line: print(f"harness {line}", file=sys.stderr))
    survey = survey_hosts(run, here, required_ops(config, accelerated=here.accelerated), asking)
    report = check_survey(checked, run, survey)
    if report.findings:
        print_findings(report.findings, checked.source)
    if not report.ok:
        print("No rank was started and nothing was written. `harness preflight` shows all answers.", file=sys.stderr)
        exit_with(ExitCode.PREFLIGHT)
    return survey


def warn_unresolved_hosts(here: LocalHost) -> None:
    """One line for all names that no name server answered for in time."""
    if not here.unresolved_names:
        return
    names = f"`{here.unresolved_names[0]}`" + (
        f" and {len(here.unresolved_names) - 1:,} more" if here.unresolved_names[1:] else ""
    )
    took = f"could not be looked up within {NAME_LOOKUP_SECONDS:.0f} s"
    print(f"note: {names} {took}: taken for other machines than {here.hostname}", file=sys.stderr)


def network_from_survey(survey: Survey | None) -> Network | None:
    """What a launch plan takes from the answers; None where nobody was asked."""
    return (
        Network(survey.shared_interface, survey.master_address, survey.has_accelerators) if survey is not None else None
    )
