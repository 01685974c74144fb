# SPDX-License-Identifier: Apache-2.0
"""Stage 3 with layers gathered as one: room for the next layer next to the gathered ones."""

from __future__ import annotations

from harness.plan.gathered_parameters import embedding_numel_kept_gathered, num_layers_kept_gathered
from harness.plan.tuned_default import TunedDefault
from harness.plan.tuned_defaults import leaf_modules, max_reuse_distance, prefetch_bucket
from harness.plan.tuned_defaults.default_inputs import DefaultInputs

_KEY = "stage3_max_live_parameters"
_DEFAULT = 1_000_000_000


def choose_default(inputs: DefaultInputs) -> TunedDefault | None:
    """DeepSpeed prefetches until so many elements are gathered (`partitioned_param_coordinator.py`
    `max_params_to_prefetch`). Below two layers and the parameters that stay gathered from forward to backward, it
    gathers a part of each layer when the layer is needed, and the computation waits. Only larger values than the
    default are chosen: other models have enough.
    """
    model = inputs.model
    if (
        model is None
        or leaf_modules.choose_default(inputs) is None
        or not inputs.is_unset(_KEY)
        or not prefetch_bucket.effective_prefetch(inputs)
    ):
        return None
    reuse = max_reuse_distance.effective_reuse_distance(inputs)
    value = (
        max(1, num_layers_kept_gathered(model, reuse)) + 1
    ) * model.largest_layer_parameters + embedding_numel_kept_gathered(model, reuse)
    if value <= _DEFAULT:
        return None
    reason = "room to gather the next layer while this one computes"
    return TunedDefault("live parameters", f"zero_optimization.{_KEY}", value, _DEFAULT, reason)
