# SPDX-License-Identifier: Apache-2.0
"""The objectives by name: the one place that lists them."""

from __future__ import annotations

from harness.run.resolved_run import ResolvedRun
from harness.runtime.models.model_builder import build_own_model
from harness.runtime.objectives.causal_lm import CausalLM
from harness.runtime.objectives.custom import Custom
from harness.runtime.objectives.dpo import Dpo
from harness.runtime.objectives.kto import Kto
from harness.runtime.objectives.label_head import Classification, Reward
from harness.runtime.objectives.objective import Objective
from harness.runtime.plugin_loader import load_plugin

_KINDS = (CausalLM, Custom, Dpo, Kto, Classification, Reward)
_OBJECTIVES: dict[str, type[Objective]] = {kind.name: kind for kind in _KINDS}


def make_objective(run: ResolvedRun) -> Objective:
    """The objective that `objective` of the spec names, for one rank."""
    return _OBJECTIVES[run.spec.objective](run)


def ask_before_ranks(run: ResolvedRun) -> None:
    """Ask the model of a run as each rank does: of its own code, or built by a plug-in. Raises UserError as a rank."""
    objective, plugin = make_objective(run), load_plugin(run.spec)
    config = objective.load_config(objective.load_tokenizer())
    objective.check_model(config)
    build = plugin.build_model if plugin is not None and run.spec.objective == CausalLM.name else None
    if build is not None and config is not None:
        build_own_model(run, config, build)
