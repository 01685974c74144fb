# SPDX-License-Identifier: Apache-2.0
"""Stage 3: the size of the prefetch, one layer."""

from __future__ import annotations

from harness.plan.tuned_default import TunedDefault
from harness.plan.tuned_defaults import leaf_modules
from harness.plan.tuned_defaults.default_inputs import DefaultInputs

_DEFAULT = 50_000_000
_MAX = 250_000_000
_MIN = 1_000_000


def choose_default(inputs: DefaultInputs) -> TunedDefault | None:
    """The next layer while this one computes: with a smaller bucket the computation waits, a larger one only takes
    memory. A layer that is gathered module by module needs no more than the largest modules.
    """
    key, offload = "stage3_prefetch_bucket_size", inputs.run.spec.zero.offload_param
    if inputs.stage != 3 or not inputs.has_whole_layers or inputs.model is None or not inputs.is_unset(key):
        return None
    if offload is not None and offload.device == "nvme":
        return None
    as_one = leaf_modules.choose_default(inputs) is not None
    value = max(
        _MIN, inputs.model.largest_layer_parameters if as_one else min(_MAX, inputs.model.largest_layer_parameters)
    )
    reason = "the next layer is gathered while this one computes"
    return TunedDefault("prefetch", f"zero_optimization.{key}", value, _DEFAULT, reason)


def effective_prefetch(inputs: DefaultInputs) -> int:
    """The tuned value, else the spec's, else DeepSpeed's default."""
    default = choose_default(inputs)
    if default is not None:
        return int(default.value)
    return _DEFAULT if inputs.settings is None else inputs.settings.prefetch_bucket_size
