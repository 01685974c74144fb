"""The hosts of a run, asked and judged: what `harness preflight` and `harness launch` share. Starts nothing."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from harness.cli.common import Checked, exit_with, print_findings
from harness.errors import Exit, Refused
from harness.facts.machine import LOOKUP_SECONDS
from harness.facts.survey import Survey
from harness.findings import Report
from harness.launching.here import Here
from harness.launching.ops import needed_ops
from harness.launching.plan import Network
from harness.launching.preflight import Asking, take_survey
from harness.plan.run import Run


def judged(checked: Checked, run: Run, survey: Survey) -> Report:
    """What the gates have to say about the hosts' answers, and only about these."""
    from harness.gates import check
    from harness.gates.registry import gates

    if checked.source is None:
        raise Refused(checked.report.findings, checked.code)
    asking = {gate.id for gate in gates() if "the hosts' answers" in gate.needs}
    accelerator = "cuda" if survey.accelerated else "cpu"
    report = check(run, checked.source, launching=True, accelerator=accelerator, survey=survey)
    return Report(report.file, tuple(f for f in report.findings if f.gate in asking), len(asking))


def hosts_are_well(checked: Checked, run: Run, here: Here, config: Mapping[str, Any]) -> Survey:
    """Ask the hosts before a launch. What stops the run is printed and ends the program (exit code 4)."""
    asking = Asking(tell=lambda line: print(f"harness {line}", file=sys.stderr))
    survey = take_survey(run, here, needed_ops(config, accelerated=here.accelerated), asking)
    report = judged(checked, run, survey)
    if report.findings:
        print_findings(report.findings, checked.source)
    if not report.ok:
        print("No rank was started and nothing was written. `harness preflight` shows all answers.", file=sys.stderr)
        exit_with(Exit.PREFLIGHT)
    return survey


def say_what_is_unresolved(here: Here) -> None:
    """One line for all names that no name server answered for in time."""
    if not here.unresolved:
        return
    names = f"`{here.unresolved[0]}`" + (f" and {len(here.unresolved) - 1:,} more" if here.unresolved[1:] else "")
    took = f"could not be looked up within {LOOKUP_SECONDS:.0f} s"
    print(f"note: {names} {took}: taken for other machines than {here.hostname}", file=sys.stderr)


def network_of(survey: Survey | None) -> Network | None:
    """What a launch plan takes from the answers; None where nobody was asked."""
    return Network(survey.interface, survey.master_address, survey.accelerated) if survey is not None else None
