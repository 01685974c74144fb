# SPDX-License-Identifier: Apache-2.0
"""Differences between an engine and what it should compute: as findings, and as the exception that stops a training."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence
from types import TracebackType

from harness.engine_witness.witness_result import Difference
from harness.facts.release_faults import RELEASE_FAULTS
from harness.findings import Finding, Fix, Severity
from harness.runtime.engine_checks.engine_check import CheckResult, EngineCheck
from harness.runtime.engine_checks.witness_checks import WITNESS_CHECKS
from harness.runtime.user_errors import format_findings

GRADIENT_GATES = frozenset(fault.gate for fault in RELEASE_FAULTS if fault.gate and fault.values)
"""Gates about releases that compute another gradient: such a finding names the fault that the witness measures."""
_ENGINE_FAULT = "train with ZeRO stage 1 or another DeepSpeed, and report it with `engine_checks.json`"
_SCRIPT_FIRST = "if the script changes `.grad` after `backward`, or by a post-accumulate hook, leave that out; else"
_FIXES = {
    "other-clip-grad": "remove what sets `clip_grad` of the optimizer, and set `gradient_clipping` in the JSON",
    "not-clipped": f"if the script changes how the optimizer clips, leave that out; else {_ENGINE_FAULT}",
    "clip-norm": f"if the script changes gradients or how the optimizer clips, leave that out; else {_ENGINE_FAULT}",
}
"""By cause of a difference, where no release is known to have the fault."""


class EngineDifferenceError(RuntimeError):
    """The engine does not compute what it should. `findings` say what differs, the same on every rank."""

    def __init__(self, findings: Iterable[Finding]) -> None:
        self.findings = tuple(findings)
        super().__init__("\n".join(format_findings(self.findings)))


def print_error_once(rank: int) -> None:
    """From now on, an EngineDifferenceError that ends the program is printed by rank 0 alone, and without a traceback:
    all ranks have the same, and it is about the engine and not about the line that called it. The first rank of each
    other host says in one line why it ended.
    """
    earlier_hook = sys.excepthook

    def print_error(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
        if not isinstance(error, EngineDifferenceError):
            earlier_hook(kind, error, traceback)
        elif rank == 0:
            sys.stderr.write(f"{kind.__module__}.{kind.__qualname__}: {error}\n")
        elif os.environ.get("LOCAL_RANK", "0") == "0":
            ids = ", ".join(dict.fromkeys(finding.gate for finding in error.findings))
            sys.stderr.write(
                f"harness.watch on rank {rank}: stopped by {ids}, as all ranks; rank 0 says what differs\n"
            )

    sys.excepthook = print_error


def find_gradient_faults(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Those of the linter's findings that explain another gradient."""
    return tuple(f for f in findings if f.gate in GRADIENT_GATES)


def difference_finding(difference: Difference, severity: Severity, known_faults: Sequence[Finding]) -> Finding:
    """A difference that the gradient witness measured, with the known fault of this release that explains it."""
    check = WITNESS_CHECKS[difference.kind]
    is_own_setting = difference.cause == "other-clip-grad"
    faults = known_faults if difference.kind == "gradient" and not is_own_setting else ()
    fault = next(iter(faults), None)
    text = f"{fault.message} ({fault.gate}): {difference.text}" if fault else difference.text
    notes = [f"`harness explain {fault.gate}` has the releases of this fault"] if fault else []
    notes.append(f"engine check: {check.question}")
    own_fix = f"{_SCRIPT_FIRST} {_ENGINE_FAULT}" if difference.kind == "gradient" else _ENGINE_FAULT
    fix = fault.fix if fault and fault.fix else Fix(_FIXES.get(difference.cause, own_fix))
    return Finding(check.id, severity, text, notes=tuple(notes), fix=fix)


def check_finding(check: EngineCheck, result: CheckResult, severity: Severity) -> Finding:
    """A check that failed."""
    pages = f"; see also {', '.join(f'`harness explain {gate}`' for gate in check.gates)}" if check.gates else ""
    notes = (*result.notes, f"engine check: {check.question}{pages}")
    fix = Fix(check.fix) if check.fix else None
    return Finding(check.id, severity, result.text, key=check.key, notes=notes, fix=fix)
