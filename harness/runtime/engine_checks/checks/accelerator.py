# SPDX-License-Identifier: Apache-2.0
"""AT018: the type of the ranks' device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from harness.runtime.engine_checks.engine_check import (
    CheckResult,
    EngineCheck,
    NotApplicable,
    check_failed,
    check_passed,
    format_ranks,
)
from harness.runtime.engine_checks.expected_settings import ExpectedSettings
from harness.runtime.engine_checks.observations import Observations


def _observe(observations: Observations) -> Any:
    if not observations.expected.uses_accelerators:
        raise NotApplicable("the launch counted no accelerators")
    return observations.engine.device.type


def _evaluate(expected: ExpectedSettings, rank_values: Sequence[Any]) -> CheckResult:  # noqa: ARG001
    cpu_ranks = [rank for rank, kind in enumerate(rank_values) if kind == "cpu"]
    if not cpu_ranks:
        return check_passed(rank_values[0])
    return check_failed(
        f"ranks compute on the CPU{format_ranks(cpu_ranks, len(rank_values))}, and the launch counted accelerators",
        "cpu",
    )


CHECK = EngineCheck(
    id="AT018",
    name="on-the-cpu",
    question="are the ranks on the accelerators that the launch counted?",
    moment="built",
    observe=_observe,
    evaluate=_evaluate,
    gates=("EN015", "EN054"),
    fix="see `harness doctor` on that host; to train on the CPU on purpose, launch with DS_ACCELERATOR=cpu",
)
