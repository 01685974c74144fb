# SPDX-License-Identifier: Apache-2.0
"""A plan of which everything is known: the model, the settings and the memory."""

from __future__ import annotations

from dataclasses import dataclass

from harness.facts.model_lookup import ModelFacts
from harness.plan.memory.memory_estimate import MemoryEstimate
from harness.plan.planner import Plan
from harness.plan.settings.plan_settings import PlanSettings
from harness.plan.time.step_time import StepTime


@dataclass(frozen=True, slots=True)
class CountedPlan:
    """The parts of a plan that were counted; `time` is None for a GPU of unknown speed."""

    plan: Plan
    model: ModelFacts
    settings: PlanSettings
    memory: MemoryEstimate
    time: StepTime | None

    @staticmethod
    def of(plan: Plan | None) -> CountedPlan | None:
        """None where the plan lacks the model, the ranks or the micro-batch."""
        if plan is None or plan.model is None or plan.settings is None or plan.memory is None:
            return None
        return CountedPlan(plan, plan.model, plan.settings, plan.memory, plan.time)
