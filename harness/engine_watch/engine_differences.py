# SPDX-License-Identifier: Apache-2.0
"""Differences between an engine and what it should compute: as findings, and as the exception that stops a training."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from harness.engine_witness.witness_result import Difference
from harness.facts.release_faults import RELEASE_FAULTS
from harness.findings import Finding, Fix, Severity
from harness.runtime.engine_checks.engine_check import CheckResult, EngineCheck
from harness.runtime.engine_checks.witness_checks import WITNESS_CHECKS
from harness.runtime.user_errors import format_findings

GRADIENT_GATES = frozenset(fault.gate for fault in RELEASE_FAULTS if fault.gate and fault.values)
"""Gates about releases that compute another gradient: such a finding names the fault that the witness measures."""
_NEWEST = "train with the newest DeepSpeed, or with ZeRO stage 1; report it with `engine_checks.json`"


class EngineDifferenceError(RuntimeError):
    """The engine does not compute what it should. `findings` say what differs, the same on every rank."""

    def __init__(self, findings: Iterable[Finding]) -> None:
        self.findings = tuple(findings)
        super().__init__("\n".join(format_findings(self.findings)))


def find_gradient_faults(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Those of the linter's findings that explain another gradient."""
    return tuple(f for f in findings if f.gate in GRADIENT_GATES)


def difference_finding(difference: Difference, severity: Severity, known_faults: Sequence[Finding]) -> Finding:
    """A difference that the gradient witness measured, with the known fault of this release that explains it."""
    check = WITNESS_CHECKS[difference.kind]
    faults = known_faults if difference.kind == "gradient" else ()
    fault = next(iter(faults), None)
    text = f"{fault.message} ({fault.gate}): {difference.text}" if fault else difference.text
    notes = [f"`harness explain {fault.gate}` has the releases of this fault"] if fault else []
    notes.append(f"engine check: {check.question}")
    fix = fault.fix if fault and fault.fix else Fix(_NEWEST)
    return Finding(check.id, severity, text, notes=tuple(notes), fix=fix)


def check_finding(check: EngineCheck, result: CheckResult, severity: Severity) -> Finding:
    """A check that failed."""
    pages = f"; see also {', '.join(f'`harness explain {gate}`' for gate in check.gates)}" if check.gates else ""
    notes = (*result.notes, f"engine check: {check.question}{pages}")
    fix = Fix(check.fix) if check.fix else None
    return Finding(check.id, severity, result.text, key=check.key, notes=notes, fix=fix)
