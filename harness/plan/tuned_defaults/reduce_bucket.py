# SPDX-License-Identifier: Apache-2.0
"""The size of a gradient bucket: that of a layer, not 500 million elements."""

from __future__ import annotations

from harness.plan.tuned_default import TunedDefault
from harness.plan.tuned_defaults.default_inputs import DefaultInputs

_DEFAULT = 500_000_000
MAX_BUCKET = 50_000_000
MIN_BUCKET = 1_000_000


def choose_default(inputs: DefaultInputs) -> TunedDefault | None:
    """DeepSpeed allocates a whole bucket on every rank whatever the model's size, twice with `overlap_comm` below stage
    3 (`stage3.py` `ipg_buckets`, `stage_1_and_2.py` `setup_buckets`). It reduces a larger parameter alone.
    """
    if (
        inputs.stage == 0
        or not inputs.has_whole_layers
        or inputs.model is None
        or not inputs.is_unset("reduce_bucket_size")
    ):
        return None
    value = min(MAX_BUCKET, max(MIN_BUCKET, inputs.model.largest_layer_parameters))
    reason = f"gradients are reduced layer by layer; no layer needs more than {value:,} elements"
    return TunedDefault("gradient bucket", "zero_optimization.reduce_bucket_size", value, _DEFAULT, reason)
