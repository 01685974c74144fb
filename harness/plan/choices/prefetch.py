"""Stage 3: parameters that are gathered ahead, one layer of them."""

from __future__ import annotations

from harness.plan.choices import leaf_modules
from harness.plan.choices.choice import Choice
from harness.plan.choices.facts import Facts

_DEFAULT = 50_000_000
_MOST = 250_000_000
_LEAST = 1_000_000


def choose(facts: Facts) -> Choice | None:
    """The next layer while this one computes: less leaves part of it to be waited for, more only holds memory. A layer
    that is gathered module by module needs no more than the largest modules.
    """
    key, offload = "stage3_prefetch_bucket_size", facts.run.spec.zero.offload_param
    if facts.stage != 3 or not facts.plain or facts.model is None or not facts.silent(key):
        return None
    if offload is not None and offload.device == "nvme":
        return None
    as_one = leaf_modules.choose(facts) is not None
    value = max(_LEAST, facts.model.per_layer if as_one else min(_MOST, facts.model.per_layer))
    reason = "the next layer is gathered while this one computes"
    return Choice("prefetch", f"zero_optimization.{key}", value, _DEFAULT, reason)


def elements(facts: Facts) -> int:
    """What holds: chosen, written or the default."""
    choice = choose(facts)
    if choice is not None:
        return int(choice.value)
    return _DEFAULT if facts.settings is None else facts.settings.prefetch
