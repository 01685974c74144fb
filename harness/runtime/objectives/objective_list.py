# SPDX-License-Identifier: Apache-2.0
"""The objectives by name: the one place that lists them."""

from __future__ import annotations

from harness.run.resolved_run import ResolvedRun
from harness.runtime.objectives.causal_lm import CausalLM
from harness.runtime.objectives.custom import Custom
from harness.runtime.objectives.dpo import Dpo
from harness.runtime.objectives.kto import Kto
from harness.runtime.objectives.label_head import Classification, Reward
from harness.runtime.objectives.objective import Objective

_KINDS = (CausalLM, Custom, Dpo, Kto, Classification, Reward)
_OBJECTIVES: dict[str, type[Objective]] = {kind.name: kind for kind in _KINDS}


def make_objective(run: ResolvedRun) -> Objective:
    """The objective that `objective` of the spec names, for one rank."""
    return _OBJECTIVES[run.spec.objective](run)
