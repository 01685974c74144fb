"""AT025: ranks that share a sample see the same one, and others see others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from harness.runtime.engine_checks.engine_check import (
    CheckResult,
    EngineCheck,
    NotApplicable,
    check_failed,
    check_passed,
)
from harness.runtime.engine_checks.expected_settings import ExpectedSettings
from harness.runtime.engine_checks.observations import Observations


def _observe(seen: Observations) -> Any:
    if seen.last_batch is None:
        raise NotApplicable("nothing was drawn")
    return seen.last_batch


def _evaluate(asked: ExpectedSettings, found: Sequence[Any]) -> CheckResult:
    groups: dict[int, int] = {}
    owners: dict[int, int] = {}
    for rank, has in enumerate(found):
        group = asked.dims_of_rank(rank).data_parallel_rank
        first = groups.setdefault(group, rank)
        if found[first]["digest"] != has["digest"]:
            return check_failed(
                f"ranks {first} and {rank} share a micro-batch, and see other tokens in step {has['step']}", has["step"]
            )
        for row in has["rows"] if first == rank else ():
            other = owners.setdefault(row, rank)
            if other != rank:
                return check_failed(
                    f"ranks {other} and {rank} both train on row {row} in step {has['step']}", has["step"]
                )
    return check_passed({"rows": len(owners), "groups": len(groups)})


CHECK = EngineCheck(
    id="AT025",
    name="samples-shared-wrongly",
    question="do ranks of a tensor, pipeline or sequence group see the same samples, and other data ranks others?",
    moment="steps",
    observe=_observe,
    evaluate=_evaluate,
    key="parallel",
    fix="draw by the data-parallel rank, not by the rank in the world",
)
