# SPDX-License-Identifier: Apache-2.0
"""AT025: ranks of one group share their samples, and data-parallel ranks do not."""

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


def _observe(observations: Observations) -> Any:
    if observations.last_batch is None:
        raise NotApplicable("no sample was read")
    return observations.last_batch


def _evaluate(expected: ExpectedSettings, rank_values: Sequence[Any]) -> CheckResult:
    groups: dict[int, int] = {}
    owners: dict[int, int] = {}
    for rank, values in enumerate(rank_values):
        group = expected.dims_of_rank(rank).data_parallel_rank
        first_rank = groups.setdefault(group, rank)
        if rank_values[first_rank]["digest"] != values["digest"]:
            return check_failed(
                f"ranks {first_rank} and {rank} share a micro-batch, but see different tokens in step {values['step']}",
                values["step"],
            )
        for row in values["rows"] if first_rank == rank else ():
            other_rank = owners.setdefault(row, rank)
            if other_rank != rank:
                return check_failed(
                    f"ranks {other_rank} and {rank} both train on row {row} in step {values['step']}", values["step"]
                )
    return check_passed({"rows": len(owners), "groups": len(groups)})


CHECK = EngineCheck(
    id="AT025",
    name="samples-shared-wrongly",
    question="do ranks of one micro-batch see the same samples, and data-parallel ranks different ones?",
    moment="steps",
    observe=_observe,
    evaluate=_evaluate,
    key="parallel",
    fix="sample by the data-parallel rank, not by the global rank",
)
