# SPDX-License-Identifier: Apache-2.0
"""The inputs of a tuned default: the run, its settings before any choice, the model's sizes. No probe of a machine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from harness.facts.model_lookup import ModelFacts
    from harness.plan.settings.plan_settings import PlanSettings
    from harness.run.resolved_run import ResolvedRun

_SECTIONS = ("offload_optimizer", "offload_param")


@dataclass(frozen=True, slots=True)
class DefaultInputs:
    """`settings` is None while the ranks or the micro-batch are unknown, `model` where `harness.facts` has no sizes of
    it.
    """

    run: ResolvedRun
    model: ModelFacts | None
    settings: PlanSettings | None

    @property
    def stage(self) -> int:
        """The ZeRO stage."""
        return self.run.spec.zero.stage

    @property
    def has_whole_layers(self) -> bool:
        """Ranks that divide the batch or the tokens, not the layers: no tensor or pipeline parallelism."""
        dims = self.run.parallel_dims
        return dims.tensor == dims.pipeline == 1

    def is_unset(self, key: str) -> bool:
        """Did the user leave this key of DeepSpeed's `zero_optimization` alone, wherever it can be written?"""
        *section, name = key.split(".")
        zero: Any = self.run.spec.zero
        raw: Any = self.run.spec.deepspeed.get("zero_optimization")
        for part in section:
            zero = getattr(zero, part, None)
            raw = raw.get(part) if isinstance(raw, Mapping) else None
        is_set = zero is not None and zero.is_written(name) and getattr(zero, name) is not None
        return not is_set and not (isinstance(raw, Mapping) and name in raw)
