# SPDX-License-Identifier: Apache-2.0
"""AT016: the degree of expert parallelism."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from harness.runtime.engine_checks.engine_check import CheckResult, EngineCheck, NotApplicable, check_equal
from harness.runtime.engine_checks.expected_settings import ExpectedSettings
from harness.runtime.engine_checks.observations import Observations


def _observe(observations: Observations) -> Any:
    if observations.expected.expert_parallel_size < 2:
        raise NotApplicable("the spec has no expert parallelism")
    from deepspeed.module_inject.auto_ep_layer import AutoEPMoELayer

    sizes = [int(m.ep_size) for m in observations.engine.module.modules() if isinstance(m, AutoEPMoELayer)]
    return min(sizes, default=1)


def _evaluate(expected: ExpectedSettings, rank_values: Sequence[Any]) -> CheckResult:
    return check_equal(expected.expert_parallel_size, rank_values, "the number of ranks that share a layer's experts")


CHECK = EngineCheck(
    id="AT016",
    name="experts-not-spread",
    question="are a layer's experts sharded over as many ranks as in the spec?",
    moment="built",
    observe=_observe,
    evaluate=_evaluate,
    key="deepspeed.expert_parallel",
    gates=("EX001", "EX003"),
    fix="set `expert_parallel.enabled: true` and `autoep_size`, with a model that has experts",
)
