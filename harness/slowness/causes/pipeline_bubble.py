"""Pipeline bubble: stages wait at the start and the end of each batch, (p - 1) / (m + p - 1) of it under 1F1B."""

from __future__ import annotations

from harness.plan.pipeline_schedule import bubble_fraction
from harness.slowness.run_measurements import (
    RunMeasurements,
    SettingChange,
    Slowdown,
    format_percent,
    scale_micro_batch,
)

LIMIT = 0.10


def detect(case: RunMeasurements) -> Slowdown | None:
    """More than a tenth of the batch."""
    s = case.settings
    if s is None or s.pipeline_parallel_size < 2:
        return None
    share = bubble_fraction("1f1b", s.pipeline_parallel_size, s.accumulation)
    if share < LIMIT:
        return None
    evidence = [
        f"{s.pipeline_parallel_size} stages and {s.accumulation} micro-batches: (p - 1) / (m + p - 1) = {format_percent(share)} of the time "
        "each stage waits, if all stages take the same"
    ]
    found = []
    for factor in (0.5, 0.25):
        sets = scale_micro_batch(s, factor)
        if sets is not None:
            left = format_percent(bubble_fraction("1f1b", s.pipeline_parallel_size, int(s.accumulation / factor)))
            found.append(
                SettingChange(f"micro-batches of {sets['train.per_device_train_batch_size']}: a bubble of {left}", sets)
            )
    if s.pipeline_parallel_size > 2 and s.pipeline_parallel_size % 2 == 0:
        found.append(
            SettingChange(
                f"{s.pipeline_parallel_size // 2} stages",
                {"parallel.pipeline_parallel_size": s.pipeline_parallel_size // 2},
            )
        )
    advice = ("a larger `train.global_batch_size` has more micro-batches (changes what is trained)",)
    return Slowdown("bubble", "the pipeline's bubble", share, tuple(evidence), tuple(found), advice, is_planned=True)
