# SPDX-License-Identifier: Apache-2.0
"""Stage 3 with layers gathered as one: no parameter stays whole on every rank, however small."""

from __future__ import annotations

from harness.plan.tuned_default import TunedDefault
from harness.plan.tuned_defaults import leaf_modules
from harness.plan.tuned_defaults.default_inputs import DefaultInputs

_KEY = "stage3_param_persistence_threshold"
_DEFAULT = 100_000


def choose_default(inputs: DefaultInputs) -> TunedDefault | None:
    """DeepSpeed shards and gathers a persistent parameter after each step, by a collective of its own (`stage3.py`
    `_post_step`): two norms a layer. A parameter that is gathered with its layer costs no collective at all.
    """
    if leaf_modules.choose_default(inputs) is None or not inputs.is_unset(_KEY):
        return None
    reason = "small parameters are gathered with their layer, not one by one after each step"
    return TunedDefault("persistence", f"zero_optimization.{_KEY}", 0, _DEFAULT, reason)
