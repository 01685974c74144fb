"""Stage 3 with layers gathered as one: room for the next layer beside what is gathered already."""

from __future__ import annotations

from harness.plan.choices import leaf_modules, prefetch, reuse_distance
from harness.plan.choices.choice import Choice
from harness.plan.choices.facts import Facts
from harness.plan.gathered import kept_embeddings, kept_layers

_KEY = "stage3_max_live_parameters"
_DEFAULT = 1_000_000_000


def choose(facts: Facts) -> Choice | None:
    """DeepSpeed gathers ahead until so many elements are gathered (`partitioned_param_coordinator.py`
    `max_params_to_prefetch`). Below two layers and what stays gathered over the turn, a part of each layer is gathered
    when the layer is needed, and the computation waits for it. More than the default only: it is enough for others.
    """
    model = facts.model
    if model is None or leaf_modules.choose(facts) is None or not facts.silent(_KEY) or not prefetch.elements(facts):
        return None
    reuse = reuse_distance.elements(facts)
    value = (max(1, kept_layers(model, reuse)) + 1) * model.per_layer + kept_embeddings(model, reuse)
    if value <= _DEFAULT:
        return None
    reason = "room to gather the next layer while this one computes"
    return Choice("live parameters", f"zero_optimization.{_KEY}", value, _DEFAULT, reason)
