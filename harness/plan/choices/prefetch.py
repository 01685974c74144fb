"""Stage 3: parameters that are gathered ahead, one layer of them."""

from __future__ import annotations

from harness.plan.choices.choice import Choice
from harness.plan.choices.facts import Facts

_DEFAULT = 50_000_000
_MOST = 250_000_000
_LEAST = 1_000_000


def choose(facts: Facts) -> Choice | None:
    """The next layer while this one computes: less leaves part of it to be waited for, more only holds memory."""
    key, offload = "stage3_prefetch_bucket_size", facts.run.spec.zero.offload_param
    if facts.stage != 3 or not facts.plain or facts.model is None or not facts.silent(key):
        return None
    if offload is not None and offload.device == "nvme":
        return None
    value = min(_MOST, max(_LEAST, facts.model.per_layer))
    reason = "the next layer is gathered while this one computes"
    return Choice("prefetch", f"zero_optimization.{key}", value, _DEFAULT, reason)
