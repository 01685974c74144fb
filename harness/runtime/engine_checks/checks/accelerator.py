"""AT018: the kind of device that the ranks compute on."""

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


def _observe(seen: Observations) -> Any:
    if not seen.expected.uses_accelerators:
        raise NotApplicable("the launch counted no accelerators")
    return seen.engine.device.type


def _evaluate(asked: ExpectedSettings, found: Sequence[Any]) -> CheckResult:  # noqa: ARG001
    on_cpu = [rank for rank, kind in enumerate(found) if kind == "cpu"]
    if not on_cpu:
        return check_passed(found[0])
    return check_failed(
        f"ranks compute on the CPU{format_ranks(on_cpu, len(found))}, and the launch counted accelerators", "cpu"
    )


CHECK = EngineCheck(
    id="AT018",
    name="on-the-cpu",
    question="are the ranks on the accelerators that the launch counted?",
    moment="built",
    observe=_observe,
    evaluate=_evaluate,
    gates=("EN015", "EN054"),
    fix="see `harness doctor` on that host; where the CPU is meant, launch with DS_ACCELERATOR=cpu",
)
