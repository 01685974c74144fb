"""Stage 3 with the optimizer on NVMe: the next sub-group is read and the last one written while one is computed."""

from __future__ import annotations

from harness.plan.choices.choice import Choice
from harness.plan.choices.facts import Facts
from harness.plan.choices.sub_group import VALUE as SMALL

_SECTION = "offload_optimizer"
_DEFAULTS = {"pipeline_read": False, "pipeline_write": False, "buffer_count": 4}
IN_FLIGHT = 3
"""Sub-groups: computed, read ahead, still written (`pipelined_optimizer_swapper.py`; 11 buffers fail, 12 run)."""


def choose(facts: Facts) -> tuple[Choice, ...]:
    """All three keys or none. Not with sub-groups that the user made large: their buffers would be threefold."""
    zero, settings = facts.run.spec.zero, facts.settings
    on_nvme = zero.offload_optimizer is not None and zero.offload_optimizer.device == "nvme"
    if facts.stage != 3 or not on_nvme or settings is None:
        return ()
    if not all(facts.silent(f"{_SECTION}.{key}") for key in _DEFAULTS):
        return ()
    if not facts.silent("sub_group_size") and settings.sub_group > SMALL:
        return ()
    ahead = "the next sub-group is read, the last one written, while one is computed"
    count = IN_FLIGHT * settings.swap_set
    values = {
        "pipeline_read": (True, ahead),
        "pipeline_write": (True, ahead),
        "buffer_count": (count, f"{settings.swap_set} for each of the {IN_FLIGHT} sub-groups in flight"),
    }
    return tuple(
        Choice(f"swapping, {key}", f"zero_optimization.{_SECTION}.{key}", value, _DEFAULTS[key], reason)
        for key, (value, reason) in values.items()
    )
