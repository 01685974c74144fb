# SPDX-License-Identifier: Apache-2.0
"""Observes and evaluates checks, and keeps their results as engine_checks.json has them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

from harness.runtime.engine_checks.engine_check import CheckName, CheckResult, EngineCheck, NotApplicable, check_skipped
from harness.runtime.engine_checks.expected_settings import ExpectedSettings
from harness.runtime.engine_checks.observations import Observations

FILE = "engine_checks.json"
FORMAT_VERSION = 1
_RESULT_FIELDS = tuple(field.name for field in fields(CheckResult))


def observe_check(check: EngineCheck, observations: Observations) -> Any:
    """The observation of this rank: ("observed", value), ("skipped", reason) or ("failed", reason)."""
    try:
        return "observed", check.observe(observations)
    except NotApplicable as reason:
        return "skipped", str(reason)
    except Exception as error:  # DeepSpeed's insides move: a check that cannot observe them is skipped
        return "failed", f"{type(error).__name__}: {error}"[:200]


def evaluate_check(check: EngineCheck, expected: ExpectedSettings, rank_values: Sequence[Any]) -> CheckResult:
    """The result of a check, the same on every rank."""
    for outcome, reason in rank_values:
        if outcome == "failed":
            return check_skipped(f"not applicable: {reason}")
    for outcome, reason in rank_values:
        if outcome == "skipped":
            return check_skipped(reason)
    try:
        return check.evaluate(expected, [value for _, value in rank_values])
    except Exception as error:  # as above
        return check_skipped(f"could not be checked: {type(error).__name__}: {error}"[:200])


class CheckResults:
    """The last result of each check. A failure stays, and a skipped check does not replace one that passed."""

    def __init__(self) -> None:
        self._rows: dict[str, dict[str, Any]] = {}

    def record(self, check: CheckName, result: CheckResult, step: int, ignored: str | None = None) -> None:
        """Record a result of `step`. `ignored` says why a failure is ignored."""
        earlier_state = self._rows.get(check.id, {}).get("state")
        if earlier_state == "differs" or (earlier_state == "holds" and result.state == "skipped"):
            return
        header = {"id": check.id, "name": check.name, "question": check.question, "step": step}
        values = {name: value for name in _RESULT_FIELDS if (value := getattr(result, name)) not in (None, "", ())}
        if result.state == "differs" and ignored is not None:
            values["ignored"] = ignored
        self._rows[check.id] = {**header, **values}

    def states(self) -> dict[str, str]:
        """Id -> `holds`, `differs` or `skipped`."""
        return {name: row["state"] for name, row in self._rows.items()}

    def to_json(self, head: Mapping[str, Any]) -> str:
        """The text of engine_checks.json, one check a line. (`json` with an indent takes ten times as long.)"""
        lines = ",\n".join(json.dumps(self._rows[name], default=str) for name in sorted(self._rows))
        return (
            f'{json.dumps({"format_version": FORMAT_VERSION, **head}, default=str)[:-1]}, "claims": [\n{lines}\n]}}\n'
        )
