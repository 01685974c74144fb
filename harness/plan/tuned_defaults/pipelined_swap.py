# SPDX-License-Identifier: Apache-2.0
"""Stage 3 with the optimizer on NVMe: reads and writes of other sub-groups overlap with the step of one."""

from __future__ import annotations

from harness.plan.tuned_default import TunedDefault
from harness.plan.tuned_defaults.default_inputs import DefaultInputs
from harness.plan.tuned_defaults.sub_group_size import NVME_SUB_GROUP_SIZE as SMALL

_SECTION = "offload_optimizer"
_DEFAULTS = {"pipeline_read": False, "pipeline_write": False, "buffer_count": 4}
SUB_GROUPS_IN_FLIGHT = 3
"""Sub-groups: one in the step, one read ahead, one still written (`pipelined_optimizer_swapper.py`; 11 buffers fail, 12
run).
"""


def choose_default(inputs: DefaultInputs) -> tuple[TunedDefault, ...]:
    """All three keys or none. Not with large sub-groups of the user's: they would need threefold buffers."""
    zero, settings = inputs.run.spec.zero, inputs.settings
    on_nvme = zero.offload_optimizer is not None and zero.offload_optimizer.device == "nvme"
    if inputs.stage != 3 or not on_nvme or settings is None:
        return ()
    if not all(inputs.is_unset(f"{_SECTION}.{key}") for key in _DEFAULTS):
        return ()
    if not inputs.is_unset("sub_group_size") and settings.sub_group_size > SMALL:
        return ()
    overlap = "reads of the next sub-group and writes of the last one overlap with compute"
    count = SUB_GROUPS_IN_FLIGHT * settings.swap_buffers_per_sub_group
    values = {
        "pipeline_read": (True, overlap),
        "pipeline_write": (True, overlap),
        "buffer_count": (
            count,
            f"{settings.swap_buffers_per_sub_group} for each of the {SUB_GROUPS_IN_FLIGHT} sub-groups in flight",
        ),
    }
    return tuple(
        TunedDefault(f"swapping, {key}", f"zero_optimization.{_SECTION}.{key}", value, _DEFAULTS[key], reason)
        for key, (value, reason) in values.items()
    )
