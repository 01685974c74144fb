# SPDX-License-Identifier: Apache-2.0
"""Stage 3 with gradient checkpointing: a recomputed layer stays gathered for its own backward pass."""

from __future__ import annotations

from harness.plan.tuned_default import TunedDefault
from harness.plan.tuned_defaults.default_inputs import DefaultInputs

_DEFAULT = 1_000_000_000


def choose_default(inputs: DefaultInputs) -> TunedDefault | None:
    """DeepSpeed would gather a layer of more than half the distance three times instead of twice (counted:
    `partitioned_param_coordinator.py` `__params_to_release`). Smaller layers need no more than the default.
    """
    key, model, spec = "stage3_max_reuse_distance", inputs.model, inputs.run.spec
    if inputs.stage != 3 or model is None or inputs.run.checkpointing is None or not inputs.is_unset(key):
        return None
    offload = spec.zero.offload_param
    if 2 * model.largest_layer_parameters <= _DEFAULT or (offload is not None and offload.device == "nvme"):
        return None
    numel = model.largest_layer_parameters
    reason = f"a layer of {numel:,} elements stays gathered from its recomputation to its backward pass"
    return TunedDefault(
        "reuse distance", f"zero_optimization.{key}", 2 * model.largest_layer_parameters, _DEFAULT, reason
    )


def effective_reuse_distance(inputs: DefaultInputs) -> int:
    """The tuned value, else the spec's, else DeepSpeed's default."""
    default = choose_default(inputs)
    if default is not None:
        return int(default.value)
    return _DEFAULT if inputs.settings is None else inputs.settings.max_reuse_distance
