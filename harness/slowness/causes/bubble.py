"""Pipeline bubble: stages wait at the start and the end of each batch, (p - 1) / (m + p - 1) of it under 1F1B."""

from __future__ import annotations

from harness.plan.pipeline import bubble
from harness.slowness.case import Case, Setting, Slow, batches, percent

LIMIT = 0.10


def look(case: Case) -> Slow | None:
    """More than a tenth of the batch."""
    s = case.settings
    if s is None or s.pipeline < 2:
        return None
    share = bubble("1f1b", s.pipeline, s.accumulation)
    if share < LIMIT:
        return None
    evidence = [
        f"{s.pipeline} stages and {s.accumulation} micro-batches: (p - 1) / (m + p - 1) = {percent(share)} of the time "
        "each stage waits, if all stages take the same"
    ]
    found = []
    for factor in (0.5, 0.25):
        sets = batches(s, factor)
        if sets is not None:
            left = percent(bubble("1f1b", s.pipeline, int(s.accumulation / factor)))
            found.append(
                Setting(f"micro-batches of {sets['train.per_device_train_batch_size']}: a bubble of {left}", sets)
            )
    if s.pipeline > 2 and s.pipeline % 2 == 0:
        found.append(Setting(f"{s.pipeline // 2} stages", {"parallel.pipeline_parallel_size": s.pipeline // 2}))
    advice = ("a larger `train.global_batch_size` has more micro-batches (changes what is trained)",)
    return Slow("bubble", "the pipeline's bubble", share, tuple(evidence), tuple(found), advice, planned=True)
