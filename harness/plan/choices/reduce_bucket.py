"""Elements of gradients that are reduced at once: from the size of a layer, not 500 million."""

from __future__ import annotations

from harness.plan.choices.choice import Choice
from harness.plan.choices.facts import Facts

_DEFAULT = 500_000_000
MOST = 50_000_000
LEAST = 1_000_000


def choose(facts: Facts) -> Choice | None:
    """A bucket is allocated in full on every rank whatever the model's size, twice with `overlap_comm` below stage 3
    (`stage3.py` `ipg_buckets`, `stage_1_and_2.py` `setup_buckets`). A larger parameter is reduced by itself.
    """
    if facts.stage == 0 or not facts.plain or facts.model is None or not facts.silent("reduce_bucket_size"):
        return None
    value = min(MOST, max(LEAST, facts.model.per_layer))
    reason = f"reduced as layers finish, in a buffer that no layer needs larger than {value:,} elements"
    return Choice("gradient bucket", "zero_optimization.reduce_bucket_size", value, _DEFAULT, reason)
