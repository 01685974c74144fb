# SPDX-License-Identifier: Apache-2.0
"""Stage 3 with states on NVMe: small sub-groups, since a buffer is as large as the largest sub-group."""

from __future__ import annotations

from harness.plan.tuned_default import TunedDefault
from harness.plan.tuned_defaults.default_inputs import DefaultInputs

_DEFAULT = 1_000_000_000
NVME_SUB_GROUP_SIZE = 100_000_000


def choose_default(inputs: DefaultInputs) -> TunedDefault | None:
    """Four swap buffers of a sub-group's share, and for parameters one of a whole sub-group on every rank
    (`swap_tensor/utils.py`, `stage3.py` `_create_fp16_partitions_with_defragmentation`). Elsewhere the default stays:
    checkpoints depend on it.
    """
    zero = inputs.run.spec.zero
    on_nvme = any(
        offload is not None and offload.device == "nvme" for offload in (zero.offload_optimizer, zero.offload_param)
    )
    if inputs.stage != 3 or not on_nvme or not inputs.is_unset("sub_group_size"):
        return None
    reason = "buffers in host memory are as large as a sub-group"
    return TunedDefault("sub-groups", "zero_optimization.sub_group_size", NVME_SUB_GROUP_SIZE, _DEFAULT, reason)
