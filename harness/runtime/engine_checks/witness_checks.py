# SPDX-License-Identifier: Apache-2.0
"""AT028 to AT030: the checks that the gradient witness answers, at steps 1, 2, 3 and every 200."""

from __future__ import annotations

from collections.abc import Iterator

from harness.engine_witness.witness_result import DifferenceKind, WitnessResult
from harness.runtime.engine_checks.engine_check import CheckName, CheckResult, check_failed, check_passed, check_skipped

WITNESS_CHECKS: dict[DifferenceKind, CheckName] = {
    "gradient": CheckName(
        "AT028",
        "another-gradient",
        "is the optimizer stepped with the mean of the gradients that the backward passes computed?",
    ),
    "update": CheckName("AT029", "another-update", "is the step of the optimizer that of its formula?"),
    "weights": CheckName(
        "AT030", "weights-not-copied", "does the model compute with the weights that the optimizer wrote?"
    ),
}
"""Kind of a difference -> its check."""


def witness_outcomes(result: WitnessResult) -> Iterator[tuple[CheckName, CheckResult]]:
    """The result of each check of the witness after one sampled step."""
    for kind, check in WITNESS_CHECKS.items():
        difference = next((d for d in result.differences if d.kind == kind), None)
        if difference is not None:
            yield check, check_failed(difference.text, difference.to_json())
        elif kind == "update" and not result.updates:
            yield check, check_skipped("; ".join(result.not_compared) or "no update was compared")
        else:
            yield check, check_passed({"parameters": result.parameters, "elements": result.elements})


def skipped_outcomes(reason: str) -> Iterator[tuple[CheckName, CheckResult]]:
    """The same where the witness does not look at an engine."""
    for check in WITNESS_CHECKS.values():
        yield check, check_skipped(reason)
