"""Stage 3 with gradient checkpointing: a recomputed layer stays gathered for its own backward pass."""

from __future__ import annotations

from harness.plan.choices.choice import Choice
from harness.plan.choices.facts import Facts

_DEFAULT = 1_000_000_000


def choose(facts: Facts) -> Choice | None:
    """A layer of more than half the distance would be gathered three times instead of twice (counted:
    `partitioned_param_coordinator.py` `__params_to_release`). Smaller layers are served by the default.
    """
    key, model, spec = "stage3_max_reuse_distance", facts.model, facts.run.spec
    if facts.stage != 3 or model is None or not spec.train.gradient_checkpointing or not facts.silent(key):
        return None
    offload = spec.zero.offload_param
    if 2 * model.per_layer <= _DEFAULT or (offload is not None and offload.device == "nvme"):
        return None
    reason = f"a layer of {model.per_layer:,} elements stays gathered from its recomputation to its backward pass"
    return Choice("reuse distance", f"zero_optimization.{key}", 2 * model.per_layer, _DEFAULT, reason)


def elements(facts: Facts) -> int:
    """What holds: chosen, written or the default."""
    choice = choose(facts)
    if choice is not None:
        return int(choice.value)
    return _DEFAULT if facts.settings is None else facts.settings.reuse
